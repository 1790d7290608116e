"""Areas under curves for tables (score, label), for all resamples at once."""

from __future__ import annotations

import numpy as np


def auroc(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of rows (score, label 0 or 1), in per cent.

    It is the chance that a positive example has a higher score than a negative one; equal scores
    count one half. 50 where a resample lacks a class. scikit-learn gives the same with counts as
    sample weights.
    """
    positive, negative = _by_score(table, counts)
    below = np.cumsum(negative, 1) - negative
    wins = (positive * (below + negative / 2)).sum(1)
    pairs = positive.sum(1) * negative.sum(1)
    area: np.ndarray = 100 * np.divide(wins, pairs, out=np.full(len(wins), 0.5), where=pairs > 0)
    return area


def auprc(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Average precision of rows (score, label 0 or 1), in per cent: Σ precision·(gain of recall)
    over the distinct scores, from the highest down, as in scikit-learn. 0 without positives.
    """
    positive, negative = (np.flip(part, 1) for part in _by_score(table, counts))
    hits = np.cumsum(positive, 1)
    taken = hits + np.cumsum(negative, 1)
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    total = positive.sum(1)
    gained = (precision * positive).sum(1)
    area: np.ndarray = 100 * np.divide(gained, total, out=np.zeros(len(total)), where=total > 0)
    return area


def _by_score(table: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positive and negative examples [draws, distinct scores] have each score, from the
    lowest up.
    """
    _, group = np.unique(table[:, 0], return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    is_positive = table[order, 1] == 1
    ordered = counts[:, order]
    positive = np.add.reduceat(ordered * is_positive, starts, axis=1)
    negative = np.add.reduceat(ordered * ~is_positive, starts, axis=1)
    return positive, negative
