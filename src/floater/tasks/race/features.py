"""Encoding RACE: four inputs per question, the article with the question and one option."""

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
    """Combine a question and an option into one text.

    The option fills the question's blank ("_"). Several blanks are filled with the pieces of the
    option between ";". If there is no blank, or another number of blanks than pieces, the option
    follows the question. Repeated white space is removed.
    """
    blanks = len(_BLANK.findall(question))
    pieces = [option] if blanks == 1 else [piece.strip() for piece in option.split(";")]
    if blanks == len(pieces) and all(pieces):
        rest = iter(pieces)
        text = _BLANK.sub(lambda _: next(rest), question)
    else:
        text = f"{question} {option}"
    return " ".join(text.split())


class MultipleChoices(Dataset[Choices]):
    """Questions as inputs [4, tokens] of a multiple-choice model, built when they are read.

    Attributes:
        questions: the questions.
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
            self._frame.join(
                article[: self._room - len(text.tokens)].tolist(), text.tokens.tolist()
            )
            for text in self._statements[number]
        ]
        choices: Choices = {key: [row[key] for row in rows] for key in rows[0]}
        choices["labels"] = self.questions[number].answer
        return choices

    def lengths(self) -> np.ndarray:
        """Tokens of each question's longest input [questions]."""
        return np.asarray(np.minimum(self._untruncated(), self._room) + self._frame.size)

    def cut(self) -> float:
        """Share of questions whose article is truncated for some option."""
        return float(np.mean(self._untruncated() > self._room))

    def _untruncated(self) -> np.ndarray:
        """Tokens of the article and the longest statement, without truncation [questions]."""
        return np.array(
            [
                len(article.tokens) + _longest(statements)
                for article, statements in zip(self._articles, self._statements, strict=True)
            ],
            dtype=np.int64,
        )


def _longest(statements: Sequence[Encoded]) -> int:
    return max(len(statement.tokens) for statement in statements)


def features(
    questions: Sequence[RaceQuestion], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> MultipleChoices:
    """Encode questions. Articles are truncated to fit; question and option never are.

    Args:
        questions: the questions.
        tokenizer: a fast one.
        max_length: tokens per input, including special tokens.
    """
    frame = Frame.of(tokenizer)
    articles = encode(tokenizer, [question.article for question in questions])
    flat = encode(
        tokenizer,
        [statement(question.text, option) for question in questions for option in question.options],
    )
    statements = [flat[first : first + OPTIONS] for first in range(0, len(flat), OPTIONS)]
    for question, options in zip(questions, statements, strict=True):
        size = _longest(options)
        if max_length < frame.size + size + 1:
            raise ArgumentError(
                f"`max_length` must be at least {frame.size + size + 1}, but is {max_length}: "
                f"question {question.id} has {size} tokens with one of its options, and needs "
                f"{frame.size} special tokens and at least one of the article."
            )
    return MultipleChoices(questions, frame, articles, statements, max_length)
