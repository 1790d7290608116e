"""The best threshold of the gap above which a question counts as unanswerable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import ArgumentError
from .metrics import judge
from .spans import Prediction

_TOLERANCE = 1e-9  # sums of F1 that differ by less are equal


@dataclass(frozen=True)
class Threshold:
    """A question is answered if its gap is at most `value`; the mean is then `score` per cent."""

    value: float
    score: float


def tune(predictions: Sequence[Prediction], measure: Literal["exact", "f1"]) -> Threshold:
    """Find the threshold with the best mean exact match or F1, as version 2.0 defines them.

    The mean changes only where the threshold passes a gap, so it is enough to try every gap and one
    value below them all. If several are equally good, the one nearest to 0 is used.
    """
    if measure not in ("exact", "f1"):
        raise ArgumentError(f"`measure` must be exact or f1, but is {measure!r}.")
    if not predictions:
        raise ArgumentError("`predictions` must hold at least one, but is empty.")
    column = ("exact", "f1").index(measure)
    answered = np.array([judge(item.question, item.text(), "2.0")[column] for item in predictions])
    unanswered = np.array([judge(item.question, "", "2.0")[column] for item in predictions])
    gaps = np.array([item.gap for item in predictions])
    values, group = np.unique(gaps, return_inverse=True)
    gains = np.bincount(group, weights=answered - unanswered)
    finite = np.isfinite(values)  # a question without any span is never answered
    values, gains = values[finite], gains[finite]
    below = values[0] - max(1.0, abs(values[0])) if len(values) else 0.0
    values = np.concatenate(([below], values))
    totals = unanswered.sum() + np.concatenate(([0.0], np.cumsum(gains)))
    best = np.flatnonzero(totals >= totals.max() - _TOLERANCE)
    chosen = best[np.argmin(np.abs(values[best]))]
    return Threshold(float(values[chosen]), 100 * float(totals[chosen]) / len(predictions))
