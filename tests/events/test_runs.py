"""Runs of the task `events`, through the commands."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import yaml
from examples import events as example
from rich.console import Console

from command_line import mistake, said
from floater.experiments.events import EventsTable
from floater.experiments.reproduce import reproduce
from floater.experiments.timed import NAMES
from floater.recipes import merge
from floater.runs.comparison import Comparison
from floater.runs.encodings import Encodings
from floater.runs.folder import RunFolder
from floater.tasks import task_from, task_from_file
from floater.tasks.events.task import EventsTask
from floater.training.run import run

from .files import TYPES, sequences, write_files

Said = tuple[pytest.MonkeyPatch, pytest.CaptureFixture[str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    settings = write_files(folder)
    (folder / "a.yaml").write_text(yaml.safe_dump(settings))
    run(task_from(settings), folder / "run")
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    return monkeypatch, capsys


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_holds_scores_with_intervals_encodings_and_a_complete_model(files: Path) -> None:
    folder = RunFolder(files / "run")
    test = folder.scores().sets["test"]
    assert list(test.scores) == ["log_likelihood", "accuracy", "mae", "rmse"]
    assert [score.more_is_better for score in test.scores.values()] == [True, True, False, False]
    assert all(score.interval is not None for score in test.scores.values())
    stored = Encodings.read(folder.path)
    assert stored is not None
    prepared = json.loads((folder.model / "config.json").read_text())["prepared"]
    assert stored.times[-1] == pytest.approx(prepared["span"])
    assert prepared["types"] == ["7", "ride", "stop"]


def test_the_next_event_of_each_sequence_is_written(files: Path, terminal: Said) -> None:
    outs = []
    for name in ("seen.jsonl", "seen.csv"):
        out = files / f"{name}.out.csv"
        text = said(*terminal, "predict", files / "run", "--data", files / name, "--out", out)
        assert "wrote 40 predictions" in text
        outs.append(out.read_text())
    assert outs[0] == outs[1]
    rows = rows_of(files / "seen.csv.out.csv")
    for row, entry in zip(rows, sequences(), strict=True):
        assert row["who"] == entry["id"]
        assert float(row["when"]) > entry["times"][-1]
        assert float(row["expected_when"]) > entry["times"][-1]
        chances = {name: float(row[f"p_{name}"]) for name in TYPES}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-4)
        assert row["what"] == max(chances, key=lambda name: chances[name])


def test_the_prediction_is_what_the_evaluation_predicts_there(files: Path, terminal: Said) -> None:
    known = json.loads((files / "run" / "predictions" / "test.json").read_text())
    raw = {entry["id"]: entry for entry in sequences()}
    short = files / "short.jsonl"  # without the last event, which the evaluation predicted
    cut = [
        {"id": name, "times": raw[name]["times"][:-1], "types": raw[name]["types"][:-1]}
        for name in known
    ]
    lone = {"id": "lone", "times": [5.0], "types": ["stop"]}
    short.write_text("\n".join(json.dumps(entry) for entry in [*cut, lone]))
    out = files / "short.csv"
    said(*terminal, "predict", files / "run", "--data", short, "--out", out, "--unit", "minutes")
    *rows, last = rows_of(out)
    for row, entry in zip(rows, cut, strict=True):
        expected = known[entry["id"]]
        assert row["what"] == expected["types"][-1]
        gap = float(row["when"]) - entry["times"][-1]
        assert gap == pytest.approx(expected["gaps"][-1], rel=1e-4, abs=1e-6)
    assert last["who"] == "lone"


def test_mistakes_are_one_line(files: Path, tmp_path: Path, terminal: Said) -> None:
    strange = files / "strange.jsonl"
    strange.write_text('{"times": [0, 1], "types": ["ride", "walk"]}\n')
    out = tmp_path / "out.csv"
    line = mistake(*terminal, "predict", files / "run", "--data", strange, "--out", out)
    assert "strange.jsonl, line 1: the type must be one of the 3" in line
    assert not out.exists()
    asked = ("--data", files / "seen.csv", "--out", out)
    line = mistake(*terminal, "predict", files / "run", *asked, "--unit", "hours")
    assert "must have times in minutes" in line
    line = mistake(*terminal, "predict", files / "run", *asked, "--labels", strange)
    assert "`--labels` does not apply to events" in line
    bad = tmp_path / "bad.csv"
    bad.write_text((files / "seen.csv").read_text() + "q9,soon,ride\n")
    number = bad.read_text().count("\n")
    changed = ("--set", f"data.sequences={bad}")
    line = mistake(*terminal, "train", files / "a.yaml", "--out", tmp_path / "run", *changed)
    assert f"bad.csv, line {number}: `when` must be a finite number, but is 'soon'" in line


def test_evaluating_a_file_and_another_run(files: Path, terminal: Said) -> None:
    text = said(*terminal, "evaluate", files / "run", "--data", files / "seen.csv")
    assert "seen: log_likelihood" in text
    assert "(40 examples)" in text
    other = merge(yaml.safe_load((files / "a.yaml").read_text()), {"seed": 1})
    run(task_from(other), files / "other")
    text = said(*terminal, "evaluate", files / "run", "--against", files / "other")
    assert "log_likelihood (95 %" in text
    assert "paired bootstrap|examples:10" in text


@pytest.mark.slow
def test_compare_trains_real_times_against_indices(
    files: Path, tmp_path: Path, terminal: Said
) -> None:
    out = tmp_path / "compared"
    changes = ("--set", "training.epochs=1", "--set", "compare.seeds=[0]")
    said(*terminal, "compare", files / "a.yaml", "--out", out, *changes)
    (path,) = out.rglob("comparison.json")
    found = Comparison.from_file(path)
    rows = [row for row in found.rows if row.test_set == "test"]
    assert [row.measure for row in rows] == ["log_likelihood", "accuracy", "mae", "rmse"]
    assert {row.variant for row in rows} == {"real"}


@pytest.mark.slow
def test_reproduce_has_every_asked_variant_and_the_true_process(tmp_path: Path) -> None:
    keys = ("sinusoidal", "flow-input", "none")
    few = ("training.updates=3", "training.evaluate_every=3", "training.save_every=3")
    found = reproduce(
        "events",
        "smoke",
        tmp_path,
        seeds=[0],
        workers=1,
        console=Console(quiet=True),
        keys=keys,
        overrides=(*few, "data.synthetic.sequences=60", "compare.draws=20"),
    )
    assert found is not None
    names = [row[0] for row in found.tables[0].rows]
    assert names == [*(NAMES[key] for key in keys), "the true process"]
    reached = float(str(found.tables[0].rows[-1][1]))
    scores = [row[1].mean for row in found.tables[0].rows[:-1]]  # type: ignore[union-attr]
    assert all(score < reached for score in scores)
    assert (tmp_path / "events-smoke" / "report.html").stat().st_size > 10_000


def test_the_config_is_valid_and_shows_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATER_DATA", "data")
    path = ROOT / "configs" / "events" / "taxi.yaml"
    task = task_from_file(path)
    assert isinstance(task, EventsTask)
    assert type(task.config)(**task.config.dump()) == task.config
    assert f"floater train {path.relative_to(ROOT)}" in path.read_text()
    assert EventsTable().base_settings("small")["task"] == "events"


@pytest.mark.slow
def test_the_example_runs_on_own_files(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (files / "seen.jsonl", "--epochs", 1, "--out", tmp_path)
    monkeypatch.setattr(sys, "argv", ["events", *map(str, names)])
    example.main()
    assert len(rows_of(tmp_path / "next.csv")) == 40
    assert len(Path(example.__file__).read_text().splitlines()) <= 60
