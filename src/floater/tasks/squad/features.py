"""Encoding SQuAD: windows of the question and a piece of its context that fit into the model."""

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
    """The windows of all questions, in order; a window is built when it is read.

    Attributes:
        questions: the questions.
        owner: index of each window's question [windows], ascending.
        first: index of each window's first context token [windows].
        labels: indices of the answer's first and last token [windows, 2], (0, 0) for no answer;
            None if not for training.
    """

    def __init__(
        self,
        questions: Sequence[SquadQuestion],
        frame: Frame,
        question_tokens: Sequence[np.ndarray],
        contexts: Sequence[Encoded],
        pieces: np.ndarray,
        labels: np.ndarray | None,
    ) -> None:
        self.questions, self.labels = questions, labels
        self._frame, self._question_tokens, self._contexts = frame, question_tokens, contexts
        self.owner, self._from, self._to = pieces.T
        self.first = np.array(
            [frame.second(len(question_tokens[number])) for number in self.owner], dtype=np.int64
        )

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, number: int) -> Window:
        owner = self.owner[number]
        context = self._contexts[owner].tokens[self._from[number] : self._to[number]]
        question = self._question_tokens[owner]
        window: Window = {**self._frame.join(question.tolist(), context.tolist())}
        if self.labels is not None:
            window["start_positions"], window["end_positions"] = self.labels[number].tolist()
        return window

    def offsets(self, number: int) -> np.ndarray:
        """First and end character of each context token of a window [context tokens, 2]."""
        return np.asarray(
            self._contexts[self.owner[number]].offsets[self._from[number] : self._to[number]]
        )

    def counts(self) -> np.ndarray:
        """Number of context tokens of each window [windows]."""
        return np.asarray(self._to - self._from)

    def lengths(self) -> np.ndarray:
        """Number of tokens of each window [windows]."""
        return np.asarray(self.first + self.counts() + len(self._frame.after))


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

    Questions are truncated to `max_question` tokens. The context fills the rest of `max_length`; if
    it does not fit, further windows follow. Every answer of up to `stride` + 1 tokens is therefore
    complete in some window.

    Args:
        questions: the questions.
        tokenizer: a fast one.
        max_length: tokens per window, including special tokens.
        stride: context tokens that two neighbouring windows share, as in transformers.
        training: whether windows are labelled with the question's first answer. A window without
            the complete answer is labelled as unanswerable: both labels are its first token.
        max_question: tokens per question.
    """
    frame = Frame.of(tokenizer)
    _check_sizes(frame, max_length, stride, max_question)
    contexts = encode(tokenizer, [question.context for question in questions])
    question_tokens = [
        encoded.tokens[:max_question]
        for encoded in encode(tokenizer, [question.text for question in questions])
    ]
    pieces = np.array(
        [
            (number, first, last)
            for number, (tokens, context) in enumerate(zip(question_tokens, contexts, strict=True))
            for first, last in _cut(
                len(context.tokens), max_length - frame.size - len(tokens), stride
            )
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    windows = Windows(questions, frame, question_tokens, contexts, pieces, None)
    if training:
        spans = np.array(
            [
                _span(question, context)
                for question, context in zip(questions, contexts, strict=True)
            ],
            dtype=np.int64,
        )
        windows.labels = _labels(spans.reshape(-1, 2)[windows.owner], pieces, windows.first)
    return windows


def _check_sizes(frame: Frame, max_length: int, stride: int, max_question: int) -> None:
    if max_question < 1 or stride < 0:
        raise ArgumentError(
            f"`max_question` must be ≥ 1 and `stride` ≥ 0, but they are {max_question} and "
            f"{stride}."
        )
    needed = frame.size + max_question + stride + 1
    if max_length < needed:
        raise ArgumentError(
            f"`max_length` must be at least {needed} ({frame.size} special tokens, {max_question} "
            f"of the question, {stride} shared by windows, and one more), but is {max_length}; "
            "lower `stride` or `max_question`."
        )


def _cut(count: int, room: int, shared: int) -> Iterator[tuple[int, int]]:
    """Cut `count` tokens into pieces of at most `room`; no tokens give one empty piece."""
    first = 0
    while first + room < count:
        yield first, first + room
        first += room - shared
    yield first, count


def _span(question: SquadQuestion, context: Encoded) -> tuple[int, int]:
    """First and last context token of the first answer; (-1, -1) if there is none."""
    if not question.answers:
        return -1, -1
    answer = question.answers[0]
    first = int(np.searchsorted(context.offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(context.offsets[:, 0], answer.end, side="left")) - 1
    if first > last:  # the tokenizer may drop all characters of an answer
        return -1, -1
    return first, last


def _labels(spans: np.ndarray, pieces: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Convert spans of context tokens to indices within their windows [windows, 2]."""
    _, low, high = pieces.T
    inside = (spans[:, 0] >= low) & (spans[:, 1] < high)
    return np.asarray(np.where(inside[:, None], spans - low[:, None] + first[:, None], 0))
