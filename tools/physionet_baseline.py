"""A baseline without positions for configs/series/physionet2012.yaml: boosted trees on statistics.

    python tools/physionet_baseline.py

For every variable of a stay: how often it was measured, its first, last, mean, least and largest
value and its deviation; and age, gender, height and kind of ward. scikit-learn's histogram boosting
is trained on the training and validation stays of each fold and scored on its test stays. Its
settings were not tuned. Prints AUROC and AUPRC by fold, and their means.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score, roc_auc_score

from floater.tasks.timed.folds import SplitConfig, divide

FOLDS = 5
FIXED = ("age", "gender", "height", "icu_type")
MISSING = "-1"


def rows(name: str) -> Iterator[dict[str, str]]:
    """Read a file of the data set."""
    folder = Path(os.environ.get("FLOATER_DATA", "../shared/data")) / "timeseries"
    path = folder / f"physionet2012.set-a.{name}.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from csv.DictReader(file)
    except (OSError, EOFError) as error:
        print(
            f"physionet_baseline.py: {path} must be a gzip file of the data set, but is not "
            f"({error}); set FLOATER_DATA to the folder that has timeseries/.",
            file=sys.stderr,
        )
        sys.exit(2)


def features() -> tuple[list[str], NDArray[np.float64], NDArray[np.int64]]:
    """Return the ids, statistics and labels of all stays."""
    values: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows("observations"):
        if row["value"] != MISSING:
            moment = (float(row["minutes"]), float(row["value"]))
            values[row["record_id"]][row["parameter"]].append(moment)
    variables = sorted({variable for stay in values.values() for variable in stay})
    ids, table, labels = [], [], []
    for row in rows("records"):
        stay = values[row["record_id"]]
        known = [statistics(sorted(stay.get(variable, ()))) for variable in variables]
        fixed = [np.nan if row[name] == MISSING else float(row[name]) for name in FIXED]
        ids.append(row["record_id"])
        table.append(np.concatenate((*known, fixed)))
        labels.append(int(float(row["in_hospital_death"])))
    return ids, np.array(table), np.array(labels)


def statistics(moments: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Return what is known of a variable of one stay."""
    if not moments:
        return np.array([0.0, *[np.nan] * 6])
    found = np.array([value for _, value in moments])
    spread = (found.mean(), found.min(), found.max(), found.std())
    return np.array([len(found), found[0], found[-1], *spread])


def main() -> None:
    ids, table, labels = features()
    scores = []
    for fold in range(FOLDS):
        parts = divide(ids, labels.tolist(), SplitConfig(folds=FOLDS, fold=fold))
        train, test = np.concatenate((parts["train"], parts["valid"])), parts["test"]
        trees = HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.05,
            max_leaf_nodes=8,
            l2_regularization=1.0,
            random_state=0,
        )
        found = trees.fit(table[train], labels[train]).predict_proba(table[test])[:, 1]
        scores.append(
            (roc_auc_score(labels[test], found), average_precision_score(labels[test], found))
        )
        print("fold {}: AUROC {:.2f}, AUPRC {:.2f}".format(fold, *(100 * s for s in scores[-1])))
    print("mean: AUROC {:.2f}, AUPRC {:.2f}".format(*(100 * np.mean(scores, 0))))


if __name__ == "__main__":
    main()
