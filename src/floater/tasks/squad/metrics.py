"""Exact match and F1 of each question, as the official SQuAD scripts define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import DataError
from .data import SquadQuestion, SquadSplit, Version

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case a text and remove ASCII punctuation, English articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(text: str, gold: str) -> float:
    """1 if both texts are equal after normalisation, else 0."""
    return float(normalise(text) == normalise(gold))


def f1(text: str, gold: str, version: Version) -> float:
    """Harmonic mean of precision and recall over words, with multiplicity.

    If a text is empty after normalisation, version 2.0 gives 1 if both are empty and else 0;
    version 1.1 always gives 0.
    """
    predicted, true = normalise(text).split(), normalise(gold).split()
    if not predicted or not true:
        return float(version == "2.0" and predicted == true)
    shared = (Counter(predicted) & Counter(true)).total()
    return 2 * shared / (len(predicted) + len(true))


def golds(question: SquadQuestion, version: Version) -> tuple[str, ...]:
    """The correct texts; in version 2.0 those not empty after normalisation, or "" if there is
    none.
    """
    texts = tuple(answer.text for answer in question.answers)
    if version == "1.1":
        return texts
    return tuple(text for text in texts if normalise(text)) or ("",)


def judge(question: SquadQuestion, text: str, version: Version) -> tuple[float, float]:
    """Exact match and F1 of a text, each against the correct answer for which it is largest."""
    correct = golds(question, version)
    return (
        max(exact(text, gold) for gold in correct),
        max(f1(text, gold, version) for gold in correct),
    )


@dataclass(frozen=True)
class QuestionScores:
    """Exact match and F1 of each question [questions], and whether it has an answer."""

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray

    def summary(self) -> dict[str, float | int]:
        """Means in per cent under the official script's names: of all questions, and, if some are
        unanswerable, of the answerable and the unanswerable ones.
        """
        values: dict[str, float | int] = {}
        groups = {"": np.ones_like(self.answerable)}
        if not self.answerable.all():
            groups |= {"HasAns_": self.answerable, "NoAns_": ~self.answerable}
        for name, chosen in groups.items():
            if chosen.any():
                values[f"{name}exact"] = 100 * float(self.exact[chosen].mean())
                values[f"{name}f1"] = 100 * float(self.f1[chosen].mean())
                values[f"{name}total"] = int(chosen.sum())
        return values


def score(data: SquadSplit, answers: Mapping[str, str]) -> QuestionScores:
    """Score the answer to every question; "" means no answer.

    Args:
        data: the questions with their answers.
        answers: {id: text}; must have every question, and may have others.
    """
    missing = [question.id for question in data.questions if question.id not in answers]
    if missing:
        raise DataError(
            f"Predictions must answer every question of {data.name}, but {len(missing):,} of "
            f"{len(data):,} are missing, the first of them {missing[0]}."
        )
    scores = np.array(
        [judge(question, answers[question.id], data.version) for question in data.questions]
    ).reshape(-1, 2)
    return QuestionScores(
        scores[:, 0],
        scores[:, 1],
        np.array([question.answerable for question in data.questions], dtype=bool),
    )
