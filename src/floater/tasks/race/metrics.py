"""Accuracy, of all questions and by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ArgumentError
from .data import LEVELS, OPTIONS, RaceQuestion


@dataclass(frozen=True)
class Accuracy:
    """Which questions were answered right [questions], in the order of the data, and their
    levels.
    """

    correct: np.ndarray
    levels: np.ndarray

    def summary(self) -> dict[str, float | int]:
        """Per cent of all questions, and of the middle and high school ones where there are any,
        with their numbers.
        """
        found: dict[str, float | int] = {}
        chosen = {"accuracy": np.ones_like(self.correct)} | {
            level: self.levels == level for level in LEVELS
        }
        for name, rows in chosen.items():
            if rows.any():
                found[name] = 100 * float(self.correct[rows].mean())
                found["total" if name == "accuracy" else f"{name}_total"] = int(rows.sum())
        return found


def choose(logits: np.ndarray) -> np.ndarray:
    """The best option of each question [questions]; of equal ones the first.

    Args:
        logits: [questions, 4].
    """
    if logits.ndim != 2 or logits.shape[1] != OPTIONS:
        raise ArgumentError(
            f"`logits` must be [questions, {OPTIONS}], but is {list(logits.shape)}."
        )
    if not np.isfinite(logits).all():
        raise ArgumentError("`logits` must be finite, but are not; did the training diverge?")
    return np.asarray(logits.argmax(1))


def accuracy(questions: Sequence[RaceQuestion], chosen: np.ndarray) -> Accuracy:
    """Compare the chosen options [questions] with the right ones."""
    if chosen.shape != (len(questions),):
        raise ArgumentError(
            f"`chosen` must hold one option for each of {len(questions):,} questions, but is "
            f"{list(chosen.shape)}."
        )
    right = np.array([question.answer for question in questions], dtype=np.int64)
    return Accuracy(chosen == right, np.array([question.level for question in questions]))
