"""Reading files: bad rows are one line with file and line number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floater.errors import DataError
from floater.tasks.series.config import Columns, SeriesConfig
from floater.tasks.series.observations import Observations, read_observations
from floater.tasks.series.preparation import prepare
from floater.tasks.series.task import SeriesTask
from floater.times import Clock

from .files import write_files

CLOCK = Clock(origin=0.0, name="minutes")


def read(path: Path, text: str, **settings: Any) -> Observations:
    path.write_text(text)
    return read_observations(path, Columns(), settings.get("missing", ()), CLOCK)


def test_rows_in_any_order_are_grouped_and_sorted_and_times_may_repeat(tmp_path: Path) -> None:
    text = "id,extra,time,variable,value\nb,x,5,u,1\na,x,7,v,2\nb,x,1,v,3\na,x,7,u,4\nb,x,5,v,5\n"
    found = read(tmp_path / "a.csv", text)
    assert found.ids == ["b", "a"]
    assert found.offsets.tolist() == [0, 3, 5]
    assert found.times.tolist() == [1, 5, 5, 7, 7]
    assert found.values.tolist() == [3, 1, 5, 2, 4]
    assert [found.names[code] for code in found.variables] == ["v", "u", "v", "v", "u"]
    assert found.where(0).endswith("a.csv, line 4")


HEADER = "id,time,variable,value\na,1,u,2\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,2,u,abc\n", r"line 3: `value` must be a finite number, but is 'abc'"),
        ("a,2,u,nan\n", r"line 3: `value` must be a finite number, but is 'nan'"),
        ("a,2,u,\n", r"line 3: `value` must be a finite number, but is empty"),
        ("a,2,u,1\na,inf,u,1\n", r"line 4: `time` must be a finite number, but is 'inf'"),
        ("a,-1,u,1\n", r"line 3: `time` must not be before the origin of the clock, 0, but is -1"),
        (",1,u,1\n", r"line 3: `id` must not be empty"),
        ("\na,2,u,1\n", r"line 3: .* must (be a finite number|not be empty)"),
        ("a,2,u,1,9\n", r"cannot be read: .*Expected 4 fields in line 3, saw 5"),
        ("a,2,u\n", r"line 3: `value` must be a finite number"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.csv", HEADER + rows)


def test_bad_files_are_named(tmp_path: Path) -> None:
    for name, text, message in (
        ("a.csv", "id,time,value\na,1,2\n", "must have a column 'variable', but has id, time"),
        ("b.csv", "id,time,variable,value\n", "must hold at least one row below its header"),
        ("c.txt", HEADER, r"must be a \.csv, \.csv\.gz or \.parquet file"),
        ("d.csv.gz", HEADER, "cannot be read: Not a gzipped file"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path / name, text)
    with pytest.raises(DataError, match="must be a file, but there is none"):
        read_observations(tmp_path / "no.csv", Columns(), (), CLOCK)


def test_missing_values_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", HEADER + "a,3,u,-1\na,4,u,\n", missing=(-1,))
    assert found.values.tolist() == [2]
    assert found.dropped == 2


def test_parquet_is_read_and_may_state_its_unit(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([3, 3, 4]),
        "variable": pa.array(["u", "v", "u"]),
        "value": pa.array([1.0, 2.0, None]),
    }
    for unit, time in (
        ("minutes", pa.array([1, 2, 3])),
        ("milliseconds", pa.array([1, 2, 3], pa.timestamp("ms"))),
    ):
        field = pa.field("time", time.type, metadata={"unit": unit})
        fields = [field, *(pa.field(name, array.type) for name, array in columns.items())]
        table = pa.Table.from_arrays([time, *columns.values()], schema=pa.schema(fields))
        pq.write_table(table, tmp_path / f"{unit}.parquet")
    found = read_observations(tmp_path / "minutes.parquet", Columns(), (-1,), CLOCK)
    assert (found.ids, found.values.tolist(), found.dropped) == (["3", "4"], [1, 2], 1)
    with pytest.raises(DataError, match="row 3: `value` must be a finite number, but is empty"):
        read_observations(tmp_path / "minutes.parquet", Columns(), (), CLOCK)
    with pytest.raises(DataError, match=r"must have times in minutes, .* states .* milliseconds"):
        read_observations(tmp_path / "milliseconds.parquet", Columns(), (-1,), CLOCK)


def test_labels_are_checked(tmp_path: Path) -> None:
    settings = write_files(tmp_path)
    labels = tmp_path / "labels.csv"
    right = labels.read_text()
    labels.write_text(right + "p3,yes,1,2,a\n")
    with pytest.raises(DataError, match=r"labels\.csv, line 42: .* 'p3' has a second one"):
        SeriesTask(SeriesConfig(**settings)).splits()
    labels.write_text(right.replace("p3,yes", "p3,"))
    task = SeriesTask(SeriesConfig(**settings))
    with pytest.raises(DataError, match=r"labels\.csv, line 5: the label must not be empty"):
        prepare(task.read(tmp_path / "seen.csv"), task.config)
    settings["head"] = {"kind": "regression"}
    labels.write_text(right)
    with pytest.raises(DataError, match="the label must be a finite number for regression"):
        SeriesTask(SeriesConfig(**settings)).prepare(None)  # type: ignore[arg-type]


def test_standardisation_is_that_of_the_training_set_alone(tmp_path: Path) -> None:
    task = SeriesTask(SeriesConfig(**write_files(tmp_path)))
    data = task.prepare(None)  # type: ignore[arg-type]
    train = data.splits["train"]
    first, last = train.starts()
    seen = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
    for number, name in enumerate(data.tokenizer.variables):
        mine = train.observations.values[seen][train.observations.variables[seen] == number]
        assert data.tokenizer.means[number] == pytest.approx(mine.mean(), rel=1e-5), name
        assert data.tokenizer.deviations[number] == pytest.approx(mine.std(), rel=1e-5)
    ages = train.records.numbers[train.members, 0]
    assert data.tokenizer.static_means == [pytest.approx(np.nanmean(ages))]
    assert data.tokenizer.categories == {"kind": ["a", "b"]}
