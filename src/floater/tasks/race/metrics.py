"""Accuracy on all questions and by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ArgumentError
from .data import LEVELS, OPTIONS, RaceQuestion


@dataclass(frozen=True)
class Accuracy:
    """Which questions were answered correctly [questions], and their levels."""

    correct: np.ndarray
    levels: np.ndarray

    def summary(self) -> dict[str, float | int]:
        """Accuracy in per cent and number of questions: of all, and of each level that occurs."""
        values: dict[str, float | int] = {}
        groups = {"accuracy": np.ones_like(self.correct)} | {
            level: self.levels == level for level in LEVELS
        }
        for name, rows in groups.items():
            if rows.any():
                values[name] = 100 * float(self.correct[rows].mean())
                values["total" if name == "accuracy" else f"{name}_total"] = int(rows.sum())
        return values


def choose(logits: np.ndarray) -> np.ndarray:
    """The option with the largest logit for each question [questions]; the first if several tie.

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
    """Compare the chosen options [questions] with the correct ones."""
    if chosen.shape != (len(questions),):
        raise ArgumentError(
            f"`chosen` must hold one option for each of {len(questions):,} questions, but is "
            f"{list(chosen.shape)}."
        )
    correct = np.array([question.answer for question in questions], dtype=np.int64)
    return Accuracy(chosen == correct, np.array([question.level for question in questions]))
