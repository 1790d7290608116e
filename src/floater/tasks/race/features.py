"""Questions → four inputs each: the article, and the question with one of its options."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import ArgumentError
from ..text_pairs import Encoded, Frame, encode
from .data import OPTIONS, RaceQuestion

Choices = dict[str, list[list[int]] | int]
_BLANK = re.compile("_+")


def statement(question: str, option: str) -> str:
    """A question and an option as one text.

    The option fills the question's blank ("_"). Several blanks take the option's parts, which ";"
    separates. Where there is no blank, or not as many as parts, the option follows the question.
    Spare white space goes.
    """
    blanks = len(_BLANK.findall(question))
    parts = [option] if blanks == 1 else [part.strip() for part in option.split(";")]
    if blanks == len(parts) and all(parts):
        rest = iter(parts)
        text = _BLANK.sub(lambda _: next(rest), question)
    else:
        text = f"{question} {option}"
    return " ".join(text.split())


class MultipleChoices(Dataset[Choices]):
    """Questions as a multiple-choice model takes them: every input is [4, tokens]. Put together
    when asked for.

    Attributes:
        questions: what they are about.
    """

    def __init__(
        self,
        questions: Sequence[RaceQuestion],
        frame: Frame,
        articles: Sequence[Encoded],
        statements: Sequence[Sequence[Encoded]],
        max_length: int,
    ) -> None:
        self.questions = questions
        self._frame, self._articles, self._statements = frame, articles, statements
        self._room = max_length - frame.size

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, number: int) -> Choices:
        article = self._articles[number].tokens
        rows = [
            self._frame.join(article[: self._room - len(one.tokens)].tolist(), one.tokens.tolist())
            for one in self._statements[number]
        ]
        found: Choices = {key: [row[key] for row in rows] for key in rows[0]}
        found["labels"] = self.questions[number].answer
        return found

    def lengths(self) -> np.ndarray:
        """The number of tokens of each question's longest input [questions]."""
        return np.asarray(np.minimum(self._whole(), self._room) + self._frame.size)

    def cut(self) -> float:
        """The share of questions whose article loses its end beside some option."""
        return float(np.mean(self._whole() > self._room))

    def _whole(self) -> np.ndarray:
        """The number of tokens of article and longest statement, were there no limit
        [questions].
        """
        both = zip(self._articles, self._statements, strict=True)
        return np.array(
            [len(article.tokens) + max(len(one.tokens) for one in four) for article, four in both],
            dtype=np.int64,
        )


def features(
    questions: Sequence[RaceQuestion], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> MultipleChoices:
    """Encode questions. An article that does not fit loses its end; question and option stay whole.

    Args:
        questions: what to encode.
        tokenizer: a fast one.
        max_length: tokens an input, special ones counted.
    """
    frame = Frame.of(tokenizer)
    articles = encode(tokenizer, [question.article for question in questions])
    flat = encode(
        tokenizer,
        [statement(question.text, option) for question in questions for option in question.options],
    )
    statements = [flat[first : first + OPTIONS] for first in range(0, len(flat), OPTIONS)]
    for question, four in zip(questions, statements, strict=True):
        size = max(len(one.tokens) for one in four)
        if max_length < frame.size + size + 1:
            raise ArgumentError(
                f"`max_length` must be at least {frame.size + size + 1}, but is {max_length}: "
                f"question {question.id} has {size} tokens with one of its options, to which come "
                f"{frame.size} special tokens and one of the article."
            )
    return MultipleChoices(questions, frame, articles, statements, max_length)
