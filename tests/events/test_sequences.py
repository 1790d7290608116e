"""Reading files: bad rows are one line with file and line number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floater.errors import DataError
from floater.recipes import merge
from floater.tasks.events.config import EventsConfig
from floater.tasks.events.inputs import EventInputs
from floater.tasks.events.sequences import Events, read_events
from floater.tasks.events.task import EventsTask
from floater.times import Clock

from .files import write_files

HEADER = "who,when,what\na,1,u\na,2,v\n"
LINE = '{"times": [0, 1], "types": ["u", "v"]}\n'


def config(folder: Path, **changes: Any) -> EventsConfig:
    return EventsConfig(**merge(write_files(folder), changes))


def read(path: Path, text: str, folder: Path) -> Events:
    path.write_text(text)
    found = config(folder / "own")
    return read_events(path, found.data, found.clock)


def test_json_lines_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    settings = config(tmp_path)
    first = read_events(tmp_path / "seen.jsonl", settings.data, settings.clock)
    table = read_events(tmp_path / "seen.csv", settings.data, settings.clock)
    columns = {
        "who": [table.ids[i] for i in np.repeat(np.arange(40), np.diff(table.offsets))],
        "when": table.times,
        "what": [table.names[kind] for kind in table.types],
    }
    mixed = np.argsort(np.random.default_rng(0).random(40)[np.repeat(np.arange(40), 1)])
    order = np.argsort(mixed[np.repeat(np.arange(40), np.diff(table.offsets))], kind="stable")
    pq.write_table(pa.table(columns).take(order), tmp_path / "seen.parquet")
    parquet = read_events(tmp_path / "seen.parquet", settings.data, settings.clock)

    def plain(events: Events) -> dict[str, Any]:
        spans = zip(events.offsets[:-1], events.offsets[1:], strict=True)
        return {
            name: (events.times[a:b].tolist(), [events.names[kind] for kind in events.types[a:b]])
            for name, (a, b) in zip(events.ids, spans, strict=True)
        }

    assert plain(first) == plain(table) == plain(parquet)
    assert parquet.ids != table.ids
    assert table.where(0).endswith("seen.csv, line 2")
    assert first.where(int(first.offsets[3])).endswith("seen.jsonl, line 4")


def test_keys_can_have_other_names_and_ids_may_be_missing(tmp_path: Path) -> None:
    keys = {"times": "time_since_start", "types": "type_event"}
    settings = config(tmp_path, data={"keys": keys})
    path = tmp_path / "other.jsonl"
    path.write_text('{"time_since_start": [0, 0.5], "type_event": [3, 1]}\n')
    found = read_events(path, settings.data, settings.clock)
    assert found.ids == ["line 1"]
    assert found.names == ["3", "1"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,nan,u\n", r"line 4: `when` must be a finite number, but is 'nan'"),
        ("a,soon,u\n", r"line 4: `when` must be a finite number, but is 'soon'"),
        ("a,,u\n", r"line 4: `when` must be a finite number, but is empty"),
        ("a,3,\n", r"line 4: `what` must not be empty"),
        (
            "b,1,u\na,1.5,u\n",
            r"line 5: times of a sequence must not decrease, but 2 is followed by 1\.5",
        ),
    ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.csv", HEADER + rows, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"times": [0, NaN], "types": [1, 2]}',
            r"line 2: `times` must hold finite numbers, .*nan",
        ),
        (
            '{"times": [0, "x"], "types": [1, 2]}',
            r"line 2: `times` must hold finite numbers, .*'x'",
        ),
        ('{"times": [0, true], "types": [1, 2]}', r"line 2: `times` must hold finite numbers"),
        ('{"times": [0, 1e999], "types": [1, 2]}', r"line 2: `times` must hold finite numbers"),
        ('{"times": [2, 1], "types": [1, 2]}', r"line 2: times of a sequence must not decrease"),
        ('{"times": [2], "types": [1, 2]}', r"line 2: .* same length, .* have 1 and 2 entries"),
        ('{"times": [], "types": []}', r"line 2: .* have 0 and 0 entries"),
        ('{"times": [0, 1], "types": [1, 2.5]}', r"line 2: `types` must be a name or an integer"),
        ('{"times": [0, 1], "types": [1, null]}', r"line 2: `types` must be a name or an integer"),
        ('{"times": [0, 1]}', r"line 2: must have `types`, but has times"),
        ('{"times": [0, 1', r"line 2: must be JSON"),
        ("[1, 2]", r"line 2: must be an object with `times`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.jsonl", LINE + line + "\n", tmp_path)


def test_ids_must_differ_and_files_must_be_of_a_known_kind(tmp_path: Path) -> None:
    line = '{"id": 5, "times": [0, 1], "types": ["u", "v"]}\n'
    with pytest.raises(DataError, match=r"line 2: every sequence must have an `id` of its own"):
        read(tmp_path / "a.jsonl", line + line, tmp_path)
    with pytest.raises(DataError, match=r"must be a \.jsonl, .* file, but is not"):
        read(tmp_path / "a.txt", line, tmp_path)
    with pytest.raises(DataError, match="must hold at least one sequence"):
        read(tmp_path / "b.jsonl", "\n", tmp_path)
    with pytest.raises(DataError, match="there is none"):
        read_events(tmp_path / "c.jsonl", config(tmp_path).data, Clock())


def test_one_event_is_too_few_to_train_and_an_unknown_type_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path)
    task = EventsTask(settings)
    lone = tmp_path / "lone.jsonl"
    lone.write_text(LINE + '{"times": [3], "types": ["u"]}\n')
    with pytest.raises(DataError, match=r"line 2: a sequence must have at least two events"):
        task.read(lone)
    data = task.prepare(None)  # type: ignore[arg-type]
    strange = tmp_path / "strange.jsonl"
    entry = {"times": [0, 1, 2], "types": ["ride", "stop", "walk"]}
    strange.write_text(json.dumps(entry) + "\n")
    with pytest.raises(DataError, match=r"line 1: the type must be one of the 3 .* is 'walk'"):
        EventInputs(task.read(strange), data.tokenizer, settings)


def test_times_before_the_origin_and_other_units_are_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, clock={"origin": 150.0})
    with pytest.raises(DataError, match=r"line 1: times must not be before the origin .* 150"):
        read_events(tmp_path / "seen.jsonl", settings.data, settings.clock)
    with pytest.raises(DataError, match="must have times in minutes"):
        read_events(tmp_path / "seen.jsonl", settings.data, settings.clock, "hours")
