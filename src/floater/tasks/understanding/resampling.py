"""Measures under resampling, and the paired bootstrap over examples and seeds.

Resamples are given as counts [draws, examples], how often each example occurs in each of them, so
that a measure needs one or two matrix products for all draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...errors import ArgumentError
from ...runs.scores import Difference
from .problem import Measure

_SEED = 12345
_BLOCK = 4_000_000  # largest number of counts that are processed at a time


def mean(column: int = 0, factor: float = 100.0) -> Measure:
    """The mean of a column of the table."""

    def measure(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        means: np.ndarray = factor * (counts @ table[:, column]) / counts.sum(1)
        return means

    return measure


def ratio(column: int = 0, other: int = 1, factor: float = 1.0) -> Measure:
    """The sum of one column divided by the sum of another; 0 where that is 0."""

    def measure(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return _quotient(counts @ table[:, column], counts @ table[:, other], factor)

    return measure


def accuracy(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Percentage of rows (prediction, label) that agree."""
    return mean()((table[:, :1] == table[:, 1:2]).astype(np.float64), counts)


def _confusion(table: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """True positives, false positives, false negatives, true negatives [draws] of rows (prediction,
    label); class 1 is positive.
    """
    predicted, true = table[:, 0] == 1, table[:, 1] == 1
    cells = np.stack(
        [predicted & true, predicted & ~true, ~predicted & true, ~predicted & ~true], 1
    )
    return tuple((counts @ cells.astype(np.float64)).T)


def f1(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """F1 of class 1 in per cent; 0 if there is no 1, as in scikit-learn."""
    hits, false_alarms, misses, _ = _confusion(table, counts)
    return _quotient(2 * hits, 2 * hits + false_alarms + misses)


def matthews(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Matthews correlation in per cent; 0 if predictions or labels are constant."""
    tp, fp, fn, tn = _confusion(table, counts)
    return _quotient(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def pearson(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Pearson correlation of rows (prediction, label), in per cent; 0 if predictions or labels are
    constant.
    """
    shape = counts.shape
    return _correlation(
        np.broadcast_to(table[:, 0], shape), np.broadcast_to(table[:, 1], shape), counts
    )


def spearman(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman correlation in per cent: the Pearson correlation of the ranks in each resample."""
    return _correlation(_ranks(table[:, 0], counts), _ranks(table[:, 1], counts), counts)


def _correlation(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    total = counts.sum(1, keepdims=True)
    x = x - (x * counts).sum(1, keepdims=True) / total
    y = y - (y * counts).sum(1, keepdims=True) / total
    norm = np.sqrt((counts * x**2).sum(1) * (counts * y**2).sum(1))
    return _quotient((counts * x * y).sum(1), norm)


def _quotient(numerator: np.ndarray, denominator: np.ndarray, factor: float = 100.0) -> np.ndarray:
    """A quotient, in per cent by default; 0 where the denominator is not positive."""
    zeros = np.zeros_like(denominator)
    quotient: np.ndarray = factor * np.divide(
        numerator, denominator, out=zeros, where=denominator > 0
    )
    return quotient


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean rank [draws, examples] of each value within each resample."""
    _, group = np.unique(values, return_inverse=True)
    sizes = np.zeros((len(counts), int(group.max()) + 1))
    np.add.at(sizes.T, group, counts.T)
    ranks: np.ndarray = (np.cumsum(sizes, 1) - (sizes - 1) / 2)[:, group]
    return ranks


@lru_cache(maxsize=1)
def resample_counts(examples: int, draws: int) -> np.ndarray:
    """How often each example occurs in each resample [draws, examples]; the same at every call."""
    random = np.random.default_rng(_SEED)
    return random.multinomial(examples, np.full(examples, 1 / examples), size=draws).astype(
        np.float64
    )


def resampled(measure: Measure, table: np.ndarray, draws: int) -> np.ndarray:
    """Scores [draws] of a measure over resamples of the examples."""
    counts = resample_counts(len(table), draws)
    rows = max(1, _BLOCK // len(table))
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
    measure: Measure,
    base: Sequence[np.ndarray],
    other: Sequence[np.ndarray],
    *,
    draws: int = 2000,
    over_seeds: bool = False,
) -> Difference:
    """Compare two variants by a paired bootstrap over examples.

    Both variants and all seeds share the same resamples; a resample counts with the median over
    seeds. The p-value is two-sided: twice the share of resamples whose difference has the opposite
    sign or is 0, at most 1.

    Args:
        measure: computes a score from a table.
        base: one table [examples, columns] per seed.
        other: the same for the other variant.
        draws: number of resamples.
        over_seeds: compare means over seeds, and resample the seeds of each variant too, so that
            the interval covers the chance in training.
    """
    sizes = {len(table) for table in (*base, *other)}
    if len(sizes) != 1 or not base or not other:
        raise ArgumentError(
            "A paired test needs the same examples in every run, but there are "
            f"{' and '.join(map(str, sorted(sizes))) or 'no'} examples."
        )
    count = sizes.pop()
    whole = np.ones((1, count))
    variants = (base, other)
    by_seed = [[measure(table, whole)[0] for table in tables] for tables in variants]
    drawn = [
        np.array([resampled(measure, table, draws) for table in tables]) for tables in variants
    ]
    if over_seeds:
        random = np.random.default_rng(_SEED)
        scores = [float(np.mean(seeds)) for seeds in by_seed]
        resamples = [_mean_of_drawn_seeds(each, random) for each in drawn]
    else:
        scores = [float(np.median(seeds)) for seeds in by_seed]
        resamples = [np.median(each, axis=0) for each in drawn]
    differences = resamples[1] - resamples[0]
    low, high = np.percentile(differences, [2.5, 97.5])
    beyond = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    kind = "bootstrap over examples and seeds" if over_seeds else "paired bootstrap"
    return Difference(
        base=scores[0],
        other=scores[1],
        difference=scores[1] - scores[0],
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * beyond / (draws + 1)),
        signature=f"{kind}|examples:{count}|seeds:{len(base)}|draws:{draws}|seed:{_SEED}",
    )


def _mean_of_drawn_seeds(scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The mean [draws] over as many seeds as there are, drawn anew for each resample of the
    examples, of scores [seeds, draws].
    """
    seeds = random.integers(0, len(scores), scores.shape)
    means: np.ndarray = np.take_along_axis(scores, seeds, axis=0).mean(0)
    return means
