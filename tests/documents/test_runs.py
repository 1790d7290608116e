"""Runs of the task `documents`, through the commands."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from examples import documents as example
from safetensors.numpy import load_file

from command_line import mistake, said
from floater.recipes import merge
from floater.runs.comparison import Comparison
from floater.runs.encodings import Encodings
from floater.runs.folder import RunFolder
from floater.tasks import task_from, task_of_run
from floater.training.run import run

from .files import write_encoder, write_files

Said = tuple[pytest.MonkeyPatch, pytest.CaptureFixture[str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    settings = write_files(folder)
    (folder / "a.yaml").write_text(yaml.safe_dump(settings))
    run(task_from(settings), folder / "run")
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    return monkeypatch, capsys


def check_predictions(folder: Path, out: Path, terminal: Said, data: Path) -> None:
    """Predictions of a file without labels are those of the evaluation."""
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    bare = out.with_suffix(".jsonl")
    bare.write_text("\n".join(json.dumps({k: v[k] for k in ("name", "says")}) for v in lines))
    text = said(*terminal, "predict", folder, "--data", bare, "--out", out, "--unit", "tokens")
    assert "wrote 40 predictions" in text
    with out.open(newline="") as file:
        found = {row["name"]: row for row in csv.DictReader(file)}
    known = json.loads((folder / "predictions" / "test.json").read_text())
    assert len(known) == 10
    for name, entry in known.items():
        assert found[name]["predicted"] == entry["predicted"]
        assert float(found[name]["p_up"]) == pytest.approx(entry["probabilities"][1], abs=1e-5)


def test_a_run_holds_scores_encodings_and_a_complete_model(files: Path) -> None:
    folder = RunFolder(files / "run")
    test = folder.scores().sets["test"]
    assert list(test.scores) == ["accuracy", "loss"]
    assert all(score.interval is not None for score in test.scores.values())
    assert not test.scores["loss"].more_is_better
    stored = Encodings.read(folder.path)
    assert stored is not None
    prepared = json.loads((folder.model / "config.json").read_text())["prepared"]
    assert stored.times[-1] == pytest.approx(prepared["span"])
    assert prepared["classes"] == ["down", "up"]


def test_predictions_are_those_of_the_evaluation(
    files: Path, tmp_path: Path, terminal: Said
) -> None:
    check_predictions(files / "run", tmp_path / "out.csv", terminal, files / "reviews.jsonl")


@pytest.mark.parametrize("trained", [False, True])
def test_pretrained_encoders_train_and_predict(
    files: Path, tmp_path: Path, terminal: Said, trained: bool
) -> None:
    name = str(write_encoder(tmp_path / "bert"))
    own = {"kind": "pretrained", "name": name, "trained": trained, "max_words": 20}
    settings = merge(yaml.safe_load((files / "a.yaml").read_text()), {"sentences": own})
    run(task_from(settings), tmp_path / "run")
    check_predictions(tmp_path / "run", tmp_path / "out.csv", terminal, files / "reviews.jsonl")
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert any(name.startswith("words.") for name in weights) == trained


def test_mistakes_are_one_line(files: Path, tmp_path: Path, terminal: Said) -> None:
    data, out = tmp_path / "new.jsonl", tmp_path / "out.csv"
    data.write_text('{"name": "a", "says": ["Fine."]}\n{"name": "b", "says": []}\n')
    wanted = ("predict", files / "run", "--data", data, "--out", out)
    line = mistake(*terminal, *wanted)
    assert "new.jsonl, line 2: `says` must hold at least one sentence, but is empty" in line
    assert "must have times in tokens" in mistake(*terminal, *wanted, "--unit", "hours")
    assert "`--asked` does not apply" in mistake(*terminal, *wanted, "--asked", data)
    assert not out.exists()
    data.write_text('\n{"name": "a", "says": ["Fine."], "mood": "sideways"}\n')
    line = mistake(*terminal, "evaluate", files / "run", "--data", data)
    assert "new.jsonl, line 2: the label must be one of down, up, but is 'sideways'" in line
    text = (files / "reviews.jsonl").read_text()
    data.write_text(text + '{"name": "a", "mood": "up"}\n')
    line = mistake(
        *terminal,
        *("train", files / "a.yaml", "--out", tmp_path / "run"),
        *("--set", f"data.documents={data}"),
    )
    assert "new.jsonl, line 41: must have `says`, but has name, mood" in line


def test_evaluating_a_file(files: Path, terminal: Said) -> None:
    text = said(*terminal, "evaluate", files / "run", "--data", files / "reviews.jsonl")
    assert "reviews: accuracy" in text
    assert "(40 examples)" in text


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


@pytest.mark.slow
def test_lengths_are_compared_with_equidistant_and_sinusoidal_sentences(
    files: Path, tmp_path: Path, terminal: Said
) -> None:
    said(
        *terminal,
        *("compare", files / "a.yaml", "--out", tmp_path, "--set", "data.folds=2"),
        *("--set", "training.epochs=1", "--set", "compare.draws=50"),
    )
    comparison = Comparison.from_file(tmp_path / "a" / "comparison.json")
    assert (comparison.base, comparison.seeds, comparison.main) == (
        "sinusoidal",
        [0, 1],
        "accuracy",
    )
    assert {row.variant for row in comparison.rows} == {"equidistant", "lengths"}
    assert all(row.examples == 40 for row in comparison.rows)


@pytest.mark.slow
def test_the_example_runs_on_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        json.dumps({"id": i, "text": f"Seen {i}.\n{('Bad', 'Good')[i % 2]}.", "label": i % 2})
        for i in range(40)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    arguments = (tmp_path / "own.jsonl", "--split", "lines", "--epochs", 1, "--out", tmp_path)
    monkeypatch.setattr(sys, "argv", ["documents", *map(str, arguments)])
    example.main()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 41
    assert len(Path(example.__file__).read_text().splitlines()) <= 60
