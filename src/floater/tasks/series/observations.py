"""Observations in long format, grouped by series and sorted by time; and what a series is about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...files import file_hash
from ...times import Clock
from ..timed.tables import ColumnTable
from .config import Columns, SeriesData


@dataclass(frozen=True)
class Observations:
    """All observations of all series, those of series s from `offsets[s]` to `offsets[s + 1]`.

    Attributes:
        ids: of the series.
        offsets: [series + 1].
        times: raw times [observations], non-decreasing within a series.
        variables: numbers of the variables [observations].
        values: [observations].
        names: of the variables.
        rows: the row of the file that each observation comes from [observations].
        table: that file; None for generated series.
        dropped: rows whose value is missing.
        sha256: of the file.
    """

    ids: list[str]
    offsets: NDArray[np.int64]
    times: NDArray[np.float64]
    variables: NDArray[np.int32]
    values: NDArray[np.float32]
    names: list[str]
    rows: NDArray[np.int64]
    table: ColumnTable | None
    dropped: int
    sha256: str

    def where(self, observation: int) -> str:
        """File and line of an observation, for messages."""
        return "generated" if self.table is None else self.table.where(int(self.rows[observation]))


def read_observations(
    path: Path, columns: Columns, missing: Sequence[float], clock: Clock, unit: str = ""
) -> Observations:
    """Read and check a file of observations.

    Args:
        path: .csv, .csv.gz or .parquet.
        columns: names of its columns.
        missing: numbers that stand for a missing value; those rows are left out.
        clock: what its times are checked against.
        unit: the unit that the user states for its times.
    """
    table = ColumnTable(path, columns.names())
    clock.check_unit(unit, str(path))
    clock.check_unit(table.stated_unit(columns.time), str(path))
    times = table.numbers(columns.time)
    if clock.origin != "first" and bool((times < clock.origin).any()):
        row = int(np.flatnonzero(times < clock.origin)[0])
        raise DataError(
            f"{table.where(row)}: `{columns.time}` must not be before the origin of the clock, "
            f"{clock.origin:g}, but is {times[row]:g}; correct or remove the row, or set "
            "`clock.origin`."
        )
    empty = np.nan if missing else None
    with np.errstate(over="ignore"):
        values = table.numbers(columns.value, empty=empty).astype(np.float32)
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise DataError(
            f"{table.where(row)}: `{columns.value}` must be a number that float32 can hold, up to "
            "3.4e38, but is larger; correct or remove the row."
        )
    series, variables = table.names(columns.id), table.names(columns.variable)
    table.release()
    order = np.lexsort((times, series.codes))  # stable: equal times stay in the order of the file
    left_out = 0
    if missing:
        is_missing = np.isnan(values) | np.isin(values, np.asarray(missing, dtype=np.float32))
        left_out = int(is_missing.sum())
        order = order[~is_missing[order]]
    counts = np.bincount(series.codes[order], minlength=len(series.names))
    return Observations(
        series.names,
        np.concatenate(([0], np.cumsum(counts))),
        times[order],
        variables.codes[order],
        values[order],
        variables.names,
        order,
        table,
        left_out,
        file_hash(path),
    )


@dataclass(frozen=True)
class Records:
    """One entry per series: its label and what is known about the whole series.

    Attributes:
        ids: of the series.
        labels: as text; None if there are none.
        numbers: static numbers [series, columns], NaN where missing.
        categories: static categories by column, one text per series, empty where missing.
        series: the number of each among the observations; -1 if it has none [series].
        where: file and line of each, for messages; empty for generated series.
        sha256: of the file.
    """

    ids: list[str]
    labels: list[str] | None
    numbers: NDArray[np.float64]
    categories: Mapping[str, list[str]]
    series: NDArray[np.int64]
    table: ColumnTable | None
    sha256: str

    def where(self, record: int) -> str:
        """File and line of a record, for messages."""
        return "generated" if self.table is None else self.table.where(record)


def read_records(path: Path, data: SeriesData, observations: Observations, label: str) -> Records:
    """Read the file with labels and static columns.

    Args:
        path: .csv, .csv.gz or .parquet.
        data: names of the columns.
        observations: of the series.
        label: column of the labels; empty if they are not needed.
    """
    needed = [data.columns.id, *data.static, *data.categories, *([label] if label else [])]
    table = ColumnTable(path, needed)
    found = table.names(data.columns.id)
    if len(found.names) < len(table):
        row = int(np.flatnonzero(np.diff(np.maximum.accumulate(found.codes)) == 0)[0]) + 1
        name = found.names[found.codes[row]]
        raise DataError(
            f"{table.where(row)}: every series must have one row, but {name!r} has a second one; "
            "remove it."
        )
    numbers = np.empty((len(table), len(data.static)))
    for column, name in enumerate(data.static):
        numbers[:, column] = table.numbers(name, empty=np.nan)
    numbers[np.isin(numbers, data.missing)] = np.nan
    number = {name: position for position, name in enumerate(observations.ids)}
    ids = [found.names[code] for code in found.codes]
    return Records(
        ids,
        table.texts(label) if label else None,
        numbers,
        {name: table.texts(name) for name in data.categories},
        np.array([number.get(name, -1) for name in ids], dtype=np.int64),
        table,
        file_hash(path),
    )


def records_of(observations: Observations, labels: list[str] | None = None) -> Records:
    """The series themselves, where there is no file about them."""
    count = len(observations.ids)
    return Records(
        list(observations.ids),
        labels,
        np.empty((count, 0)),
        {},
        np.arange(count),
        None,
        observations.sha256,
    )


@dataclass(frozen=True)
class SeriesSplit:
    """Some of the series.

    Attributes:
        name: where they come from, for messages.
        observations: of all series.
        records: all series.
        members: numbers of the records that belong to the split.
    """

    name: str
    observations: Observations
    records: Records
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.members)

    def ids(self) -> list[str]:
        """The ids of its series."""
        return [self.records.ids[member] for member in self.members]

    def fingerprint(self) -> dict[str, object]:
        """Where it comes from, and a hash of files and members."""
        parts = [self.observations.sha256, self.records.sha256, *self.ids()]
        return {
            "from": self.name,
            "series": len(self),
            "sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(),
        }

    def only(self, kept: NDArray[np.bool_]) -> SeriesSplit:
        """The same split with some of its members."""
        return replace(self, members=self.members[kept])

    def starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First observation of each member, and the one after its last [members]."""
        series, offsets = self.records.series[self.members], self.observations.offsets
        none = series < 0
        first = np.where(none, 0, offsets[np.where(none, 0, series)])
        last = np.where(none, 0, offsets[np.where(none, 0, series) + 1])
        return first, last
