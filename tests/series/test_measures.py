"""Areas under curves against scikit-learn; splits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from floater.errors import DataError
from floater.tasks.timed.folds import SplitConfig, divide, over_folds, pooled
from floater.tasks.timed.measures import auprc, auroc


def test_areas_are_those_of_scikit_learn_also_with_ties_and_resampled() -> None:
    random = np.random.default_rng(0)
    scores = np.round(random.normal(size=80), 1)  # with ties
    labels = (random.random(80) < 0.3).astype(float)
    counts = random.multinomial(80, np.full(80, 1 / 80), size=7).astype(float)
    table = np.column_stack((scores, labels))
    for ours, theirs in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        expected = [100 * theirs(labels, scores, sample_weight=weights) for weights in counts]
        np.testing.assert_allclose(ours(table, counts), expected, rtol=1e-9)


def test_a_resample_without_a_class_has_an_area_too() -> None:
    table = np.array([[0.1, 0.0], [0.9, 0.0]])
    assert auroc(table, np.ones((1, 2))).tolist() == [50]
    assert auprc(table, np.ones((1, 2))).tolist() == [0]


def test_scores_over_folds_are_means_of_the_folds() -> None:
    random = np.random.default_rng(1)
    tables = [np.column_stack((random.random(n), np.arange(n) % 2)) for n in (10, 14)]
    together = over_folds({"auroc": auroc})["auroc"](pooled(tables), np.ones((1, 24)))
    alone = [auroc(table, np.ones((1, len(table))))[0] for table in tables]
    assert together[0] == pytest.approx(np.mean(alone))


def test_folds_are_disjoint_complete_stratified_and_do_not_depend_on_the_order() -> None:
    ids = [f"id{number}" for number in range(103)]
    labels = ["yes" if number % 5 == 0 else "no" for number in range(103)]
    tests = []
    for fold in range(5):
        parts = divide(ids, labels, SplitConfig(folds=5, fold=fold))
        together = np.concatenate(list(parts.values()))
        assert sorted(together.tolist()) == list(range(103))
        for name, share in (("test", 0.2), ("valid", 0.08), ("train", 0.72)):
            positives = sum(labels[i] == "yes" for i in parts[name])
            assert abs(positives - share * 21) <= 1.5
            assert abs(len(parts[name]) - share * 103) <= 2
        tests.append(set(parts["test"].tolist()))
    assert set.union(*tests) == set(range(103))
    assert sum(map(len, tests)) == 103
    backwards = divide(ids[::-1], labels[::-1], SplitConfig(folds=5, fold=4))
    assert {102 - i for i in backwards["test"]} == tests[4]


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(DataError, match="The valid set must hold at least one example, but 3"):
        divide(["a", "b", "c"], ["", "", ""], SplitConfig())
