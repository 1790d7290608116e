"""Runs of the task `series`, through the commands."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from examples import series as example
from rich.console import Console
from safetensors.numpy import load_file

from command_line import mistake, said
from floater.experiments.series import PHASE_UPDATES, real_times
from floater.recipes import merge
from floater.runs.comparison import Comparison
from floater.runs.encodings import Encodings
from floater.runs.folder import RunFolder
from floater.tasks import task_from, task_of_run
from floater.training.run import run

from .files import write_files

Said = tuple[pytest.MonkeyPatch, pytest.CaptureFixture[str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("series")
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
    assert list(test.scores) == ["auroc", "auprc", "accuracy"]
    assert all(score.interval is not None for score in test.scores.values())
    assert test.examples == 10
    stored = Encodings.read(folder.path)
    assert stored is not None
    prepared = json.loads((folder.model / "config.json").read_text())["prepared"]
    assert stored.times[-1] == pytest.approx(prepared["span"])
    assert prepared["variables"] == ["heart", "breath"] or prepared["variables"][0] == "breath"


def test_predictions_are_those_of_the_evaluation(files: Path, terminal: Said) -> None:
    folder, out = files / "run", files / "out.csv"
    text = said(
        *terminal,
        *("predict", folder, "--data", files / "seen.csv", "--labels", files / "labels.csv"),
        *("--out", out, "--unit", "minutes"),
    )
    assert "wrote 40 predictions" in text
    found = {row["id"]: row for row in rows_of(out)}
    known = json.loads((folder / "predictions" / "test.json").read_text())
    assert len(known) == 10
    for name, entry in known.items():
        assert found[name]["predicted"] == entry["predicted"]
        assert float(found[name]["p_yes"]) == pytest.approx(entry["probabilities"][1], abs=1e-5)


def test_mistakes_of_predictions_are_one_line(files: Path, terminal: Said) -> None:
    data = ("--data", files / "seen.csv", "--out", files / "out2.csv")
    labels = ("--labels", files / "labels.csv")
    assert "`--labels` must be a file with the static columns age, kind" in mistake(
        *terminal, "predict", files / "run", *data
    )
    assert "must have times in minutes" in mistake(
        *terminal, "predict", files / "run", *data, *labels, "--unit", "seconds"
    )
    assert "`--asked` does not apply" in mistake(
        *terminal, "predict", files / "run", *data, *labels, "--asked", files / "seen.csv"
    )
    strange = files / "strange.csv"
    strange.write_text("id,time,variable,value\np1,3,heart,70\np1,4,liver,1\n")
    line = mistake(
        *terminal,
        *("predict", files / "run", "--data", strange, "--out", files / "out2.csv", *labels),
    )
    assert "strange.csv, line 3: the variable must be one of the 2" in line
    assert "but is 'liver'" in line
    assert not (files / "out2.csv").exists()
    assert "must have times in minutes" in mistake(
        *terminal, "evaluate", files / "run", "--unit", "hours"
    )


def test_a_bad_row_stops_a_run_with_one_line(files: Path, tmp_path: Path, terminal: Said) -> None:
    text = (files / "seen.csv").read_text()
    (tmp_path / "bad.csv").write_text(text + "p1,12,heart,high\n")
    line = mistake(
        *terminal,
        *("train", files / "a.yaml", "--out", tmp_path / "run"),
        *("--set", f"data.observations={tmp_path / 'bad.csv'}"),
    )
    number = text.count("\n") + 1
    assert f"bad.csv, line {number}: `value` must be a finite number, but is 'high'" in line


def test_evaluating_a_file_and_another_run(files: Path, terminal: Said) -> None:
    text = said(*terminal, "evaluate", files / "run", "--data", files / "seen.csv")
    assert "seen: auroc" in text
    assert "(40 examples)" in text
    other = merge(yaml.safe_load((files / "a.yaml").read_text()), {"seed": 1})
    run(task_from(other), files / "other")
    text = said(*terminal, "evaluate", files / "run", "--against", files / "other")
    assert "paired bootstrap|examples:10" in text


def test_series_without_a_label_are_named_when_a_file_is_evaluated(
    files: Path, tmp_path: Path, terminal: Said
) -> None:
    text = (files / "seen.csv").read_text()
    (tmp_path / "more.csv").write_text(text + "stranger,12,heart,80\nstranger,13,heart,81\n")
    told = said(*terminal, "evaluate", files / "run", "--data", tmp_path / "more.csv")
    assert "(40 examples)" in told
    assert "1 series have no label, and were not evaluated" in told
    told = said(*terminal, "evaluate", files / "run", "--data", files / "seen.csv")
    assert "no label" not in told


def test_a_model_with_another_clock_is_refused(files: Path, tmp_path: Path, terminal: Said) -> None:
    settings = merge(yaml.safe_load((files / "a.yaml").read_text()), {"clock": {"unit": 1}})
    run(task_from(settings), tmp_path / "seconds")
    line = mistake(
        *terminal,
        *("evaluate", files / "run", "--model", tmp_path / "seconds" / "model", "--name", "x"),
    )
    assert "must have the clock of the run (unit 60.0, name minutes" in line


@pytest.mark.slow
def test_folds_are_compared_in_pairs(files: Path, tmp_path: Path, terminal: Said) -> None:
    said(
        *terminal,
        *("compare", files / "a.yaml", "--out", tmp_path, "--set", "data.folds=2"),
        *("--set", "training.epochs=1", "--set", "compare.draws=50"),
    )
    comparison = Comparison.from_file(tmp_path / "a" / "comparison.json")
    assert (comparison.base, comparison.seeds, comparison.main) == ("index", [0, 1], "auroc")
    row = comparison.rows[0]
    assert (row.variant, row.examples) == ("real", 40)
    assert row.other == pytest.approx(np.mean(row.seeds["real"]))
    tests = [
        set(json.loads((tmp_path / "a" / f"real-{fold}" / "predictions" / "test.json").read_text()))
        for fold in (0, 1)
    ]
    assert not tests[0] & tests[1]
    assert len(tests[0] | tests[1]) == 40


@pytest.mark.parametrize("kind", ["regression", "forecasting", "imputation"])
def test_other_heads_train_and_predict(
    files: Path, tmp_path: Path, terminal: Said, kind: str
) -> None:
    settings = yaml.safe_load((files / "a.yaml").read_text())
    head: dict[str, Any] = {"kind": kind, **({"after": 250} if kind == "forecasting" else {})}
    changes: dict[str, Any] = {"head": head, "data": {"label": "size"}}
    if kind != "regression":
        changes["data"] = {"labels": None, "static": [], "categories": []}
    folder = RunFolder(tmp_path / "run")
    run(task_from(merge(settings, changes)), folder.path)
    scores = folder.scores().sets["test"].scores
    assert list(scores) == ["mse", "mae"]
    assert not scores["mse"].more_is_better
    out = tmp_path / "out.csv"
    further: list[object] = ["--labels", files / "labels.csv"]
    if kind != "regression":
        asked = tmp_path / "asked.csv"
        asked.write_text("id,time,variable\np3,900,breath\np1,333.5,heart\np1,900,heart\n")
        further = ["--asked", asked]
    data = files / "seen.csv"
    said(*terminal, "predict", folder.path, "--data", data, "--out", out, *further)
    rows = rows_of(out)
    if kind == "regression":
        assert len(rows) == 40
        known = json.loads((folder.predictions / "test.json").read_text())
        found = {row["id"]: float(row["predicted"]) for row in rows}
        assert all(found[name] == pytest.approx(value, rel=1e-4) for name, value in known.items())
    else:
        places = sorted((row["id"], row["time"], row["variable"]) for row in rows)
        assert places == [
            ("p1", "333.5", "heart"),
            ("p1", "900", "heart"),
            ("p3", "900", "breath"),
        ]
        assert all(np.isfinite(float(row["value"])) for row in rows)
        line = _mistaken(terminal, folder.path, data, tmp_path)
        assert "asked.csv, line 2: the id must be one of the series of the data" in line


def _mistaken(terminal: Said, folder: Path, data: Path, place: Path) -> str:
    (place / "asked.csv").write_text("id,time,variable\nnobody,900,breath\n")
    arguments = ("--data", data, "--out", place / "no.csv", "--asked", place / "asked.csv")
    return mistake(*terminal, "predict", folder, *arguments)


def test_a_resumed_run_ends_in_the_same_weights(files: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load((files / "a.yaml").read_text())
    half = merge(settings, {"training": {"keep_checkpoints": True, "keep": 2}})
    run(task_from(half), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    last = sorted(folder.checkpoints.iterdir(), key=lambda path: int(path.name.split("-")[1]))[-1]
    weights = load_file(last / "model.safetensors")
    for path in last.iterdir():
        path.unlink()
    last.rmdir()
    folder.note(finished=False)
    run(task_of_run(folder.path), folder.path, resume=True)
    again = load_file(last / "model.safetensors")
    assert all(np.array_equal(again[name], value) for name, value in weights.items())


@pytest.mark.torture
def test_only_real_times_tell_the_phase(tmp_path: Path) -> None:
    table, runs = real_times(tmp_path, Console(quiet=True), updates=PHASE_UPDATES, workers=1)
    scores = [folder.scores().sets["test"].scores["accuracy"].score for folder in runs]
    assert [row[1] for row in table.rows] == scores
    assert scores[0] >= 95
    assert 35 < scores[1] < 65


@pytest.mark.slow
def test_the_example_runs_on_own_files(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (files / "seen.csv", files / "labels.csv", "--epochs", 1, "--out", tmp_path)
    monkeypatch.setattr(sys, "argv", ["series", *map(str, names)])
    example.main()
    assert len(rows_of(tmp_path / "predictions.csv")) == 40
    assert len((Path(example.__file__)).read_text().splitlines()) <= 60
