"""Measures under resampling, and the paired bootstrap over examples and seeds.

A resample is how often each example counts, [draws, examples]: all draws of a measure are one or
two matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...errors import ArgumentError
from ...runs.scores import Difference
from .problem import Measure

_SEED = 12345
_AT_ONCE = 4_000_000  # counts that are held at a time


def mean(column: int = 0, factor: float = 100.0) -> Measure:
    """The mean of a column of the table."""

    def measure(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        found: np.ndarray = factor * (counts @ table[:, column]) / counts.sum(1)
        return found

    return measure


def ratio(column: int = 0, other: int = 1, factor: float = 1.0) -> Measure:
    """The sum of one column over the sum of another; 0 where that is 0."""

    def measure(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return _over(counts @ table[:, column], counts @ table[:, other], factor)

    return measure


def accuracy(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Per cent of the rows (prediction, label) that agree."""
    return mean()((table[:, :1] == table[:, 1:2]).astype(np.float64), counts)


def _confusion(table: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """True positives, false positives, false negatives, true negatives [draws] of rows (prediction,
    label); 1 is positive.
    """
    said, meant = table[:, 0] == 1, table[:, 1] == 1
    kinds = np.stack([said & meant, said & ~meant, ~said & meant, ~said & ~meant], 1)
    return tuple((counts @ kinds.astype(np.float64)).T)


def f1(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """F1 of class 1 in per cent; 0 where nothing is 1, as scikit-learn has it."""
    right, wrong, missed, _ = _confusion(table, counts)
    below = 2 * right + wrong + missed
    return _over(2 * right, below)


def matthews(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Matthews correlation in per cent; 0 where one of the two is constant."""
    a, b, c, d = _confusion(table, counts)
    below = np.sqrt((a + b) * (a + c) * (d + b) * (d + c))
    return _over(a * d - b * c, below)


def pearson(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Pearson correlation of rows (prediction, label), in per cent; 0 where one of the two is
    constant.
    """
    shape = counts.shape
    return _correlation(
        np.broadcast_to(table[:, 0], shape), np.broadcast_to(table[:, 1], shape), counts
    )


def spearman(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman correlation, in per cent: Pearson's of the ranks that the rows have in each
    resample.
    """
    return _correlation(_ranks(table[:, 0], counts), _ranks(table[:, 1], counts), counts)


def _correlation(one: np.ndarray, other: np.ndarray, counts: np.ndarray) -> np.ndarray:
    total = counts.sum(1, keepdims=True)
    one = one - (one * counts).sum(1, keepdims=True) / total
    other = other - (other * counts).sum(1, keepdims=True) / total
    below = np.sqrt((counts * one**2).sum(1) * (counts * other**2).sum(1))
    return _over((counts * one * other).sum(1), below)


def _over(above: np.ndarray, below: np.ndarray, factor: float = 100.0) -> np.ndarray:
    """A quotient, in per cent unless told; 0 where there is nothing to divide by."""
    found: np.ndarray = factor * np.divide(above, below, out=np.zeros_like(below), where=below > 0)
    return found


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean rank [draws, examples] of each value among all that were drawn."""
    _, group = np.unique(values, return_inverse=True)
    sizes = np.zeros((len(counts), int(group.max()) + 1))
    np.add.at(sizes.T, group, counts.T)
    found: np.ndarray = (np.cumsum(sizes, 1) - (sizes - 1) / 2)[:, group]
    return found


@lru_cache(maxsize=1)
def counted(examples: int, draws: int) -> np.ndarray:
    """How often each example is in each resample [draws, examples]; always the same for the same
    numbers.
    """
    random = np.random.default_rng(_SEED)
    return random.multinomial(examples, np.full(examples, 1 / examples), size=draws).astype(
        np.float64
    )


def resampled(measure: Measure, table: np.ndarray, draws: int) -> np.ndarray:
    """Scores [draws] of a measure over resamples of the examples."""
    counts = counted(len(table), draws)
    rows = max(1, _AT_ONCE // len(table))
    return np.concatenate(
        [measure(table, counts[first : first + rows]) for first in range(0, draws, rows)]
    )


def interval(measure: Measure, table: np.ndarray, draws: int = 1000) -> float | None:
    """Half the width of the 95 % interval of a score; None for a single example."""
    if len(table) < 2:
        return None
    low, high = np.percentile(resampled(measure, table, draws), [2.5, 97.5])
    return float(high - low) / 2


def paired_bootstrap(
    measure: Measure, base: Sequence[np.ndarray], other: Sequence[np.ndarray], *, draws: int = 2000
) -> Difference:
    """Paired bootstrap over examples: the same resamples for both variants and all seeds, and the
    median over seeds in each of them.

    The p-value is two-sided: twice the share of resamples in which the difference does not have its
    sign, at most 1.

    Args:
        measure: how a score follows from a table.
        base: a table [examples, columns] for each seed.
        other: the same of the other variant.
        draws: number of resamples.
    """
    sizes = {len(table) for table in (*base, *other)}
    if len(sizes) != 1 or not base or not other:
        raise ArgumentError(
            "A paired test needs the same examples in every run, but there are "
            f"{' and '.join(map(str, sorted(sizes))) or 'no'} examples."
        )
    count = sizes.pop()
    whole = np.ones((1, count))
    scores = [
        float(np.median([measure(table, whole)[0] for table in tables])) for tables in (base, other)
    ]
    medians = [
        np.median([resampled(measure, table, draws) for table in tables], axis=0)
        for tables in (base, other)
    ]
    differences = medians[1] - medians[0]
    low, high = np.percentile(differences, [2.5, 97.5])
    beyond = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return Difference(
        base=scores[0],
        other=scores[1],
        difference=scores[1] - scores[0],
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * beyond / (draws + 1)),
        signature=f"paired bootstrap|examples:{count}|seeds:{len(base)}|draws:{draws}|seed:{_SEED}",
    )
