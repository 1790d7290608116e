from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from floater.errors import ArgumentError
from floater.tasks.glue.metrics import RESAMPLED, score
from floater.tasks.understanding import resampling

CLASSES = ("accuracy", "f1", "matthews")
NUMBERS = ("pearson", "spearman")


def random_table(measure: str, seed: int, count: int = 37) -> np.ndarray:
    draw = np.random.default_rng(seed)
    if measure in CLASSES:
        return draw.integers(0, 2, (count, 2)).astype(float)
    return np.round(draw.normal(size=(count, 2)), 1)  # with ties


def by_definition(measure: str, predicted: np.ndarray, true: np.ndarray) -> float:
    """The textbook's formulas, without any library."""
    right = float(((predicted == 1) & (true == 1)).sum())
    if measure == "accuracy":
        return 100 * float((predicted == true).mean())
    if measure == "f1":
        precision, recall = (
            right / max((predicted == 1).sum(), 1),
            right / max((true == 1).sum(), 1),
        )
        return 100 * 2 * precision * recall / (precision + recall) if right else 0.0
    if measure == "spearman":
        predicted, true = rankdata(predicted), rankdata(true)
    return 100 * float(np.corrcoef(predicted, true)[0, 1])  # of two classes it is Matthews'


@pytest.mark.parametrize("measure", [*CLASSES, *NUMBERS])
@pytest.mark.parametrize("seed", range(4))
def test_scores_follow_their_definitions(measure: str, seed: int) -> None:
    predicted, true = random_table(measure, seed).T
    assert score(measure, predicted, true) == pytest.approx(
        by_definition(measure, predicted, true), abs=1e-9
    )


@pytest.mark.parametrize("measure", [*CLASSES, *NUMBERS])
def test_resampled_scores_are_those_of_the_rows_that_were_drawn(measure: str) -> None:
    table = random_table(measure, 5)
    counts = resampling.resample_counts(len(table), 20)
    assert (counts.sum(1) == len(table)).all()
    resampled = RESAMPLED[measure](table, counts)
    for draw, many in enumerate(counts.astype(int)):
        rows = np.repeat(table, many, axis=0)
        assert resampled[draw] == pytest.approx(score(measure, rows[:, 0], rows[:, 1]), abs=1e-9)


@pytest.mark.parametrize("measure", ["f1", "matthews", *NUMBERS])
def test_a_constant_prediction_scores_zero(measure: str) -> None:
    table = random_table(measure, 6)
    table[:, 0] = 0.0
    assert score(measure, *table.T) == 0
    assert RESAMPLED[measure](table, np.ones((1, len(table))))[0] == 0


def test_two_columns_make_a_ratio() -> None:
    table = np.array([[6.0, 2.0], [1.0, 1.0], [0.0, 4.0]])
    assert resampling.ratio()(table, np.array([[1.0, 1, 1], [2, 1, 0]])) == pytest.approx(
        [1.0, 13 / 5]
    )
    assert resampling.mean(1)(table, np.array([[1.0, 1, 2]])) == pytest.approx([100 * 11 / 4])


def tables(share: float, seeds: int, examples: int = 400) -> list[np.ndarray]:
    drawn = []
    for seed in range(seeds):
        draw = np.random.default_rng([seed, int(1000 * share)])
        label = draw.integers(0, 2, examples)
        drawn.append(
            np.stack([np.where(draw.random(examples) < share, label, 1 - label), label], 1).astype(
                float
            )
        )
    return drawn


def test_the_paired_bootstrap_sees_a_difference_where_there_is_one() -> None:
    clear = resampling.paired_bootstrap(
        resampling.accuracy, tables(0.6, 3), tables(0.8, 3), draws=500
    )
    assert clear.low > 0
    assert clear.low < clear.difference < clear.high
    assert clear.p_value < 0.01
    assert clear.base is not None
    assert clear.other is not None
    assert clear.difference == pytest.approx(clear.other - clear.base)
    same = resampling.paired_bootstrap(
        resampling.accuracy, tables(0.7, 3), tables(0.7, 3), draws=500
    )
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_the_median_over_seeds_counts_and_pairing_narrows_the_interval() -> None:
    outlier = [*tables(0.7, 2), np.stack([np.zeros(400), np.ones(400)], 1)]
    paired = resampling.paired_bootstrap(resampling.accuracy, outlier, tables(0.7, 2), draws=100)
    scores = sorted(score("accuracy", *table.T) for table in outlier)
    assert paired.base == pytest.approx(scores[1])
    base = tables(0.7, 1)
    better = [base[0].copy()]
    wrong = np.flatnonzero(base[0][:, 0] != base[0][:, 1])[:20]
    better[0][wrong, 0] = better[0][wrong, 1]
    paired = resampling.paired_bootstrap(resampling.accuracy, base, better, draws=500)
    alone = resampling.interval(resampling.accuracy, base[0])
    assert alone is not None
    assert paired.low > 0
    assert paired.high - paired.low < 2 * alone


def test_intervals_over_seeds_cover_the_chance_in_training() -> None:
    def seeds(*shares: float) -> list[np.ndarray]:
        return [tables(share, 1, examples=4000)[0] for share in shares]

    base, other = seeds(0.6, 0.8, 0.7), seeds(0.65, 0.85, 0.75)
    alone = resampling.paired_bootstrap(resampling.accuracy, base, other, draws=500)
    both = resampling.paired_bootstrap(resampling.accuracy, base, other, draws=500, over_seeds=True)
    assert alone.low > 0  # five points more with each seed
    assert both.low < 0 < both.high
    assert both.base is not None
    assert both.base == pytest.approx(
        np.mean([resampling.accuracy(table, np.ones((1, len(table))))[0] for table in base])
    )
    assert "examples and seeds" in both.signature
    clear = resampling.paired_bootstrap(
        resampling.accuracy, base, seeds(0.95, 0.97, 0.96), draws=500, over_seeds=True
    )
    assert clear.low > 0
    one = (base[:1], other[:1])
    equal = [
        resampling.paired_bootstrap(resampling.accuracy, *one, draws=100, over_seeds=over)
        for over in (False, True)
    ]
    assert (equal[0].low, equal[0].high) == (equal[1].low, equal[1].high)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for number in range(60):
        draw = np.random.default_rng(number)
        label = draw.integers(0, 2, 200)
        base, other = (
            np.stack([np.where(draw.random(200) < share, label, 1 - label), label], 1)
            for share in (0.7, 0.75)
        )
        paired = resampling.paired_bootstrap(
            resampling.accuracy, [base.astype(float)], [other.astype(float)], draws=300
        )
        held += paired.low <= 5.0 <= paired.high
    assert 0.85 <= held / 60 <= 1.0


@pytest.mark.parametrize("variants", [([np.ones((3, 2))], [np.ones((4, 2))]), ([], [])])
def test_unequal_examples_are_refused(variants: Any) -> None:
    with pytest.raises(ArgumentError, match="needs the same examples in every run"):
        resampling.paired_bootstrap(resampling.accuracy, *variants)
