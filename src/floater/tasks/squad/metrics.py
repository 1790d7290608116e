"""Exact match and F1 by SQuAD's official definitions, question by question."""

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
    """Lower case, without ASCII punctuation, English articles and spare white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(text: str, gold: str) -> float:
    """1 where both are the same after normalisation, else 0."""
    return float(normalise(text) == normalise(gold))


def f1(text: str, gold: str, version: Version) -> float:
    """The harmonic mean of precision and recall over words, counted as often as they occur.

    Where nothing is left of a text after normalisation, version 2.0 gives 1 if nothing is left of
    either, version 1.1 always 0.
    """
    said, meant = normalise(text).split(), normalise(gold).split()
    if not said or not meant:
        return float(version == "2.0" and said == meant)
    shared = (Counter(said) & Counter(meant)).total()
    return 2 * shared / (len(said) + len(meant))


def golds(question: SquadQuestion, version: Version) -> tuple[str, ...]:
    """The texts that count as right: in version 2.0 those of which normalisation leaves something,
    or "" if there is none.
    """
    texts = tuple(answer.text for answer in question.answers)
    if version == "1.1":
        return texts
    return tuple(text for text in texts if normalise(text)) or ("",)


def judge(question: SquadQuestion, text: str, version: Version) -> tuple[float, float]:
    """Exact match and F1 of a text against the question's best-fitting answer."""
    right = golds(question, version)
    return max(exact(text, gold) for gold in right), max(f1(text, gold, version) for gold in right)


@dataclass(frozen=True)
class QuestionScores:
    """Exact match and F1 [questions], in the order of the data, and which questions have an
    answer.
    """

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray

    def summary(self) -> dict[str, float | int]:
        """Means in per cent, under the official script's names; those of the two kinds only where a
        kind occurs beside another.
        """
        found: dict[str, float | int] = {}
        kinds = {"": np.ones_like(self.answerable)}
        if not self.answerable.all():
            kinds |= {"HasAns_": self.answerable, "NoAns_": ~self.answerable}
        for name, chosen in kinds.items():
            if chosen.any():
                found[f"{name}exact"] = 100 * float(self.exact[chosen].mean())
                found[f"{name}f1"] = 100 * float(self.f1[chosen].mean())
                found[f"{name}total"] = int(chosen.sum())
        return found


def score(data: SquadSplit, answers: Mapping[str, str]) -> QuestionScores:
    """Judge the answer to every question; "" says that there is none.

    Args:
        data: the questions with their answers.
        answers: {id: text}; must have every question, and may have more.
    """
    missing = [question.id for question in data.questions if question.id not in answers]
    if missing:
        raise DataError(
            f"Predictions must answer every question of {data.name}, but {len(missing):,} of "
            f"{len(data):,} are missing, the first is {missing[0]}."
        )
    judged = np.array(
        [judge(question, answers[question.id], data.version) for question in data.questions]
    ).reshape(-1, 2)
    return QuestionScores(
        judged[:, 0],
        judged[:, 1],
        np.array([question.answerable for question in data.questions], dtype=bool),
    )
