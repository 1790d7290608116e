"""Questions → windows: the question and a stretch of its context, each as long as a model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import ArgumentError
from ..text_pairs import Encoded, Frame, encode
from .data import SquadQuestion

Window = dict[str, list[int] | int]


class Windows(Dataset[Window]):
    """The windows of questions, in order. One is put together when it is asked for; contexts are
    kept once.

    Attributes:
        questions: what they are about.
        owner: the number of each window's question [windows], rising.
        first: the place of each window's first context token [windows].
        labels: the places of the answer's first and last token [windows, 2], (0, 0) for none; None
            unless for training.
    """

    def __init__(
        self,
        questions: Sequence[SquadQuestion],
        frame: Frame,
        asked: Sequence[np.ndarray],
        contexts: Sequence[Encoded],
        stretches: np.ndarray,
        labels: np.ndarray | None,
    ) -> None:
        self.questions, self.labels = questions, labels
        self._frame, self._asked, self._contexts = frame, asked, contexts
        self.owner, self._from, self._to = stretches.T
        self.first = np.array(
            [frame.second(len(asked[number])) for number in self.owner], dtype=np.int64
        )

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, number: int) -> Window:
        owner = self.owner[number]
        context = self._contexts[owner].tokens[self._from[number] : self._to[number]]
        found: Window = {**self._frame.join(self._asked[owner].tolist(), context.tolist())}
        if self.labels is not None:
            found["start_positions"], found["end_positions"] = self.labels[number].tolist()
        return found

    def offsets(self, number: int) -> np.ndarray:
        """The characters of the context that each context token of a window was made of [context
        tokens, 2].
        """
        return np.asarray(
            self._contexts[self.owner[number]].offsets[self._from[number] : self._to[number]]
        )

    def counts(self) -> np.ndarray:
        """The number of each window's context tokens [windows]."""
        return np.asarray(self._to - self._from)

    def lengths(self) -> np.ndarray:
        """The number of each window's tokens [windows]."""
        return np.asarray(self.first + self.counts() + len(self._frame.behind))


def features(
    questions: Sequence[SquadQuestion],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    stride: int,
    *,
    training: bool,
    max_question: int = 64,
) -> Windows:
    """Cut questions and contexts into windows.

    A question keeps its first `max_question` tokens. The context fills what is left of
    `max_length`; where it does not fit, further windows follow until its end is reached. So every
    answer of up to `stride` + 1 tokens lies whole in some window.

    Args:
        questions: what to cut.
        tokenizer: a fast one.
        max_length: tokens a window, special ones counted.
        stride: context tokens that two neighbouring windows share, as transformers uses the word.
        training: whether windows carry the span of the question's first answer. A window that does
            not hold all of it is labelled as one without an answer: both labels are its first
            token.
        max_question: tokens a question.
    """
    frame = Frame.of(tokenizer)
    if max_question < 1 or stride < 0:
        raise ArgumentError(
            f"`max_question` must be ≥ 1 and `stride` ≥ 0, but they are {max_question} and "
            f"{stride}."
        )
    needed = frame.size + max_question + stride + 1
    if max_length < needed:
        raise ArgumentError(
            f"`max_length` must be at least {needed} ({frame.size} special tokens, {max_question} "
            f"of the question, {stride} that windows share, one more), but is {max_length}; lower "
            "`stride` or `max_question`."
        )
    contexts = encode(tokenizer, [question.context for question in questions])
    asked = [
        one.tokens[:max_question]
        for one in encode(tokenizer, [question.text for question in questions])
    ]
    stretches = np.array(
        [
            (number, first, last)
            for number, (question, context) in enumerate(zip(asked, contexts, strict=True))
            for first, last in _cut(
                len(context.tokens), max_length - frame.size - len(question), stride
            )
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    windows = Windows(questions, frame, asked, contexts, stretches, None)
    if training:
        spans = np.array(
            [
                _span(question, context)
                for question, context in zip(questions, contexts, strict=True)
            ],
            dtype=np.int64,
        )
        windows.labels = _labels(spans.reshape(-1, 2)[windows.owner], stretches, windows.first)
    return windows


def _cut(count: int, room: int, shared: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most `room` tokens; a context without tokens makes one empty stretch."""
    first = 0
    while first + room < count:
        yield first, first + room
        first += room - shared
    yield first, count


def _span(question: SquadQuestion, context: Encoded) -> tuple[int, int]:
    """The first and last context token of the first answer, (-1, -1) where there is none."""
    if not question.answers:
        return -1, -1
    answer = question.answers[0]
    first = int(np.searchsorted(context.offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(context.offsets[:, 0], answer.end, side="left")) - 1
    return (
        (first, last) if first <= last else (-1, -1)
    )  # the tokenizer may drop all characters of an answer


def _labels(spans: np.ndarray, stretches: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Spans of context tokens as places in their windows [windows, 2]."""
    _, low, high = stretches.T
    inside = (spans[:, 0] >= low) & (spans[:, 1] < high)
    return np.asarray(np.where(inside[:, None], spans - low[:, None] + first[:, None], 0))
