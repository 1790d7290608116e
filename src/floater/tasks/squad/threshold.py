"""From which gap on a question counts as unanswerable: the best threshold, found by trying all that
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import ArgumentError
from .metrics import judge
from .spans import Prediction

_EQUAL = 1e-9  # sums of F1 that differ by less are the same


@dataclass(frozen=True)
class Threshold:
    """A question is answered where its gap is at most `value`; `score` is the mean in per cent that
    this gives.
    """

    value: float
    score: float


def tune(predictions: Sequence[Prediction], measure: Literal["exact", "f1"]) -> Threshold:
    """The threshold with the best mean exact match or F1 over predictions, by the definition of
    version 2.0.

    The mean changes only where the threshold passes a gap, so the gaps, and one below them all, are
    all that needs to be tried. Of equally good ones the one nearest to 0 is taken.
    """
    if measure not in ("exact", "f1"):
        raise ArgumentError(f"`measure` must be exact or f1, but is {measure!r}.")
    if not predictions:
        raise ArgumentError("`predictions` must hold at least one, but is empty.")
    which = ("exact", "f1").index(measure)
    said = np.array([judge(one.question, one.text(), "2.0")[which] for one in predictions])
    silent = np.array([judge(one.question, "", "2.0")[which] for one in predictions])
    gaps = np.array([one.gap for one in predictions])
    tried, group = np.unique(gaps, return_inverse=True)
    gains = np.bincount(group, weights=said - silent)
    tried, gains = (
        tried[np.isfinite(tried)],
        gains[np.isfinite(tried)],
    )  # a question without any span is never answered
    below = tried[0] - max(1.0, abs(tried[0])) if len(tried) else 0.0
    tried = np.concatenate(([below], tried))
    totals = silent.sum() + np.concatenate(([0.0], np.cumsum(gains)))
    best = np.flatnonzero(totals >= totals.max() - _EQUAL)
    chosen = best[np.argmin(np.abs(tried[best]))]
    return Threshold(float(tried[chosen]), 100 * float(totals[chosen]) / len(predictions))
