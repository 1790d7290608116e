"""Splits by the hash of an id: the same for every run, stratified by label, in folds or shares."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ...config import Config
from ...errors import DataError
from ...training.settings import Share
from ..understanding.problem import Measure


class SplitConfig(Config):
    """How examples are divided into train, valid and test; part of the `data` of a task."""

    folds: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Number of folds. The examples of `fold` are the test set."""
    fold: Annotated[int, Field(ge=0)] = 0
    """Which fold is the test set, from 0. A comparison runs all of them, fold k with seed k."""
    test_share: Share = 0.1
    """Share of all examples that are the test set, without folds."""
    valid_share: Share = 0.1
    """Share of the other examples that are the validation set."""
    split_seed: int = 0
    """Another number gives other splits."""

    @model_validator(mode="after")
    def _fold_exists(self) -> SplitConfig:
        if self.folds is not None and self.fold >= self.folds:
            raise ValueError(f"`fold` must be less than `folds` = {self.folds}, but is {self.fold}")
        return self


def divide(
    ids: Sequence[str], strata: Sequence[object], config: SplitConfig
) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the examples of train, valid and test, in the order of `ids`.

    The examples of a stratum are ordered by the hash of their ids and dealt out in turn, so that
    every part has its share of every stratum, and no part depends on the order of the file.

    Args:
        ids: of the examples.
        strata: the label of each; the same for all if there is nothing to stratify by.
        config: folds or shares.
    """
    place = _places(ids, strata, config.split_seed)
    if config.folds is not None:
        is_test = place % config.folds == config.fold
    else:
        is_test = _share(place, config.test_share)
    parts = divide_rest(is_test, ids, strata, config)
    if not len(parts["test"]):
        raise _too_few("test", len(ids))
    return parts


def divide_rest(
    is_test: NDArray[np.bool_], ids: Sequence[str], strata: Sequence[object], config: SplitConfig
) -> dict[str, NDArray[np.int64]]:
    """The same where the test set is known, such as by folds of the file; it may be empty."""
    rest = np.flatnonzero(~is_test).tolist()
    # anew over the rest, so that the validation set has its share of every stratum too
    again = _places([ids[i] for i in rest], [strata[i] for i in rest], config.split_seed + 1)
    is_valid = np.zeros(len(ids), dtype=bool)
    is_valid[np.array(rest)[_share(again, config.valid_share)]] = True
    parts = {"train": ~is_test & ~is_valid, "valid": is_valid, "test": is_test}
    for name in ("train", "valid"):
        if not parts[name].any():
            raise _too_few(name, len(ids))
    return {name: np.flatnonzero(members) for name, members in parts.items()}


def _too_few(name: str, count: int) -> DataError:
    return DataError(
        f"The {name} set must hold at least one example, but {count} examples are too few for "
        "these shares; give more data, or change `folds`, `test_share` or `valid_share`."
    )


def _share(place: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which places are taken if a share of them is spread evenly."""
    taken = np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9)
    return np.asarray(taken)


def _places(ids: Sequence[str], strata: Sequence[object], seed: int) -> NDArray[np.int64]:
    """A number for each example, 0, 1, … within the sorted strata, in the order of the hashes."""
    hashes = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in ids]
    order = sorted(range(len(ids)), key=lambda i: (str(strata[i]), hashes[i]))
    place = np.empty(len(ids), dtype=np.int64)
    place[order] = np.arange(len(ids))
    return place


def pooled(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The tables of all folds below each other, with the number of the fold as the last column."""
    return np.concatenate(
        [np.column_stack((table, np.full(len(table), fold))) for fold, table in enumerate(tables)]
    )


def over_folds(measures: Mapping[str, Measure]) -> dict[str, Measure]:
    """The same measures for pooled tables: the mean over folds of the score in each fold."""
    return {name: _mean_over_folds(measure) for name, measure in measures.items()}


def _mean_over_folds(measure: Measure) -> Measure:
    def mean(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        folds = table[:, -1]
        scores = [
            measure(table[folds == fold, :-1], counts[:, folds == fold])
            for fold in np.unique(folds)
        ]
        result: np.ndarray = np.mean(scores, axis=0)
        return result

    return mean
