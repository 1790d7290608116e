"""Event sequences: read from JSON lines, CSV or Parquet files, and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, brief
from ...files import file_hash
from ...times import Clock
from ..schema import field, read_json_lines
from ..timed.tables import ColumnTable
from .config import EventsData, Hawkes, Keys
from .hawkes import simulate


@dataclass(frozen=True)
class Events:
    """All events of a file, those of sequence s from `offsets[s]` to `offsets[s + 1]`.

    Attributes:
        ids: of the sequences.
        offsets: [sequences + 1].
        times: raw times [events], non-decreasing within a sequence.
        types: numbers of the types [events].
        names: of the types.
        places: file and line of each sequence (JSON lines).
        table, rows: the table, and the row of each event in it (CSV and Parquet).
        sha256: of the file.
    """

    ids: list[str]
    offsets: NDArray[np.int64]
    times: NDArray[np.float64]
    types: NDArray[np.int64]
    names: list[str]
    places: list[str]
    table: ColumnTable | None
    rows: NDArray[np.int64]
    sha256: str

    def where(self, event: int) -> str:
        """File and line of an event, for messages."""
        if self.table is not None:
            return self.table.where(int(self.rows[event]))
        return self.places[int(np.searchsorted(self.offsets, event, side="right")) - 1]


def read_events(path: Path, data: EventsData, clock: Clock, unit: str = "") -> Events:
    """Read and check a file of event sequences.

    Args:
        path: .jsonl, .csv or .parquet; the first two may end in .gz.
        data: names of keys and columns.
        clock: what times are checked against.
        unit: the unit that the user states for its times.
    """
    clock.check_unit(unit, str(path))
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        events = _from_json(path, data.keys)
    elif path.name.endswith((".csv", ".csv.gz", ".parquet")):
        events = _from_table(path, data, clock)
    else:
        raise DataError(
            f"{path} must be a .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet file, but is not."
        )
    _check_order(events)
    firsts = events.times[events.offsets[:-1]]
    if clock.origin != "first" and bool((firsts < clock.origin).any()):
        sequence = int(np.flatnonzero(firsts < clock.origin)[0])
        raise DataError(
            f"{events.where(int(events.offsets[sequence]))}: times must not be before the origin "
            f"of the clock, {clock.origin:g}, but one is {firsts[sequence]:g}; correct or remove "
            "it, or set `clock.origin`."
        )
    return events


def _check_order(events: Events) -> None:
    falls = np.diff(events.times) < 0
    falls[events.offsets[1:-1] - 1] = False  # from one sequence to the next
    if falls.any():
        event = int(np.flatnonzero(falls)[0]) + 1
        raise DataError(
            f"{events.where(event)}: times of a sequence must not decrease, but "
            f"{events.times[event - 1]:.12g} is followed by {events.times[event]:.12g}; sort the "
            "events by time."
        )


def _from_table(path: Path, data: EventsData, clock: Clock) -> Events:
    columns = data.columns
    table = ColumnTable(path, columns.names())
    clock.check_unit(table.stated_unit(columns.time), str(path))
    times = table.numbers(columns.time)
    sequences, types = table.names(columns.id), table.names(columns.type)
    table.release()
    order = np.argsort(sequences.codes, kind="stable")  # keeps the order of the file
    counts = np.bincount(sequences.codes, minlength=len(sequences.names))
    return Events(
        sequences.names,
        np.concatenate(([0], np.cumsum(counts))),
        times[order],
        types.codes[order].astype(np.int64),
        types.names,
        [],
        table,
        order,
        file_hash(path),
    )


def _from_json(path: Path, keys: Keys) -> Events:
    if not path.is_file():
        raise DataError(f"{path} must be a file, but there is none; check the path.")
    ids: list[str] = []
    places: list[str] = []
    times: list[NDArray[np.float64]] = []
    types: list[int] = []
    numbers: dict[str, int] = {}
    known: set[str] = set()
    for place, entry in read_json_lines(path):
        raw, marks = field(entry, keys.times, list, place), field(entry, keys.types, list, place)
        if len(raw) != len(marks) or not raw:
            raise DataError(
                f"{place}: `{keys.times}` and `{keys.types}` must be lists of the same length, at "
                f"least 1, but have {len(raw)} and {len(marks)} entries."
            )
        times.append(_numbers(raw, keys.times, place))
        types += [
            numbers.setdefault(_name(mark, keys.types, place), len(numbers)) for mark in marks
        ]
        given = entry.get(keys.id)
        name = f"line {place.rsplit(' ', 1)[1]}" if given is None else _name(given, keys.id, place)
        if name in known:
            raise DataError(
                f"{place}: every sequence must have an `{keys.id}` of its own, but {name!r} occurs "
                "a second time."
            )
        known.add(name)
        ids.append(name)
        places.append(place)
    if not ids:
        raise DataError(f"{path} must hold at least one sequence, but holds none.")
    return Events(
        ids,
        np.concatenate(([0], np.cumsum([len(each) for each in times]))),
        np.concatenate(times),
        np.array(types, dtype=np.int64),
        list(numbers),
        places,
        None,
        np.empty(0, dtype=np.int64),
        file_hash(path),
    )


def _numbers(raw: Sequence[Any], key: str, place: str) -> NDArray[np.float64]:
    for value in raw:
        if not _is_finite(value):
            raise DataError(
                f"{place}: `{key}` must hold finite numbers, but one is {brief(value)}; correct or "
                "remove the sequence."
            )
    return np.array(raw, dtype=np.float64)


def _is_finite(value: Any) -> bool:
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(np.isfinite(float(value)))
    except OverflowError:  # an integer of hundreds of digits
        return False


def _name(value: Any, key: str, place: str) -> str:
    name = str(value).strip() if isinstance(value, int | str) else ""
    if not name or isinstance(value, bool):
        raise DataError(
            f"{place}: `{key}` must be a name or an integer, but one is {brief(value)}."
        )
    return name


def generated(config: Hawkes) -> Events:
    """Generated sequences."""
    times, types = simulate(config)
    count, length = times.shape
    return Events(
        [f"s{number}" for number in range(count)],
        np.arange(count + 1, dtype=np.int64) * length,
        times.ravel(),
        types.ravel(),
        [str(number) for number in range(len(config.base))],
        [f"generated sequence {number}" for number in range(count)],
        None,
        np.empty(0, dtype=np.int64),
        hashlib.sha256(config.model_dump_json().encode()).hexdigest(),
    )


@dataclass(frozen=True)
class EventsSplit:
    """Some of the sequences of a file.

    Attributes:
        name: where they come from, for messages.
        events: all events of the file.
        members: numbers of the sequences that belong to the split.
    """

    name: str
    events: Events
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.members)

    def ids(self) -> list[str]:
        """The ids of its sequences."""
        return [self.events.ids[member] for member in self.members]

    def fingerprint(self) -> dict[str, object]:
        """Where it comes from, and a hash of file and members."""
        parts = [self.events.sha256, *self.ids()]
        return {
            "from": self.name,
            "sequences": len(self),
            "sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(),
        }

    def check_lengths(self) -> None:
        """Refuse a sequence of one event, in which there is nothing to predict."""
        short = self.members[np.diff(self.events.offsets)[self.members] < 2]
        if len(short):
            sequence = int(short[0])
            raise DataError(
                f"{self.events.where(int(self.events.offsets[sequence]))}: a sequence must have at "
                f"least two events, so that one can be predicted, but {self.events.ids[sequence]!r}"
                " has one; remove it."
            )
