"""`floater predict` and `floater evaluate` on files of a user."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import mistake, said
from floater.recipes import merge
from floater.runs.folder import RunFolder
from floater.tasks import task_from
from floater.training.run import run

Terminal = tuple[pytest.MonkeyPatch, pytest.CaptureFixture[str]]
HEADER = "id,time,variable,value\n"


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Sixty series of two variables, ten observations each, with a label."""
    rows = [
        f"s{series},{10 * step},{'heart' if step % 2 else 'breath'},{series + step}\n"
        for series in range(60)
        for step in range(10)
    ]
    (folder / "seen.csv").write_text(HEADER + "".join(rows))
    labels = "".join(f"s{series},{'up' if series % 2 else 'down'}\n" for series in range(60))
    (folder / "labels.csv").write_text("id,label\n" + labels)
    base: dict[str, Any] = {
        "task": "series",
        "data": {"observations": str(folder / "seen.csv"), "labels": str(folder / "labels.csv")},
        "model": {"preset": "tiny", "dropout": 0.0},
        "training": {"updates": 8, "evaluate_every": 8, "save_every": 8, "lr": 0.01, "threads": 1},
    }
    return merge(base, changes)


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("forecasts")
    head = {"kind": "forecasting", "after": 50}
    run(task_from(settings(folder, head=head, data={"labels": None})), folder / "run")
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("classes")
    run(task_from(settings(folder)), folder / "run")
    return RunFolder(folder / "run")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return monkeypatch, capsys


def forecast(
    terminal: Terminal, run: RunFolder, folder: Path, rows: str, question: str = "n,60,heart"
) -> float:
    data, asked, out = (folder / name for name in ("new.csv", "asked.csv", "out.csv"))
    data.write_text(HEADER + rows)
    asked.write_text(f"id,time,variable\n{question}\n")
    files = ["--data", data, "--asked", asked, "--out", out]
    said(*terminal, "predict", run.path, *files)
    with out.open() as file:
        (row,) = csv.DictReader(file)
    return float(row["value"])


def test_a_forecast_needs_the_past_alone_and_never_sees_the_future(
    forecasts: RunFolder, terminal: Terminal, tmp_path: Path
) -> None:
    past = "n,0,breath,3\nn,10,heart,4\n"
    alone = forecast(terminal, forecasts, tmp_path, past)
    for later in ("n,70,heart,5\n", "n,70,heart,999\nn,60,heart,999\n"):
        assert forecast(terminal, forecasts, tmp_path, past + later) == alone
    assert forecast(terminal, forecasts, tmp_path, past.replace("4", "40")) != alone


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("n,40,heart", "line 2: the time must be later than `head.after`"),
        ("n,60,pulse", "asked.csv, line 2: the variable must be one of the 2 that"),
        ("m,60,heart", "line 2: the id must be one of the series of the data"),
    ],
)
def test_questions_that_cannot_be_answered_are_named(
    forecasts: RunFolder, terminal: Terminal, tmp_path: Path, question: str, message: str
) -> None:
    (tmp_path / "new.csv").write_text(f"{HEADER}n,0,breath,3\n")
    (tmp_path / "asked.csv").write_text(f"id,time,variable\n{question}\n")
    files = [
        *("--data", tmp_path / "new.csv", "--asked", tmp_path / "asked.csv"),
        *("--out", tmp_path / "out.csv"),
    ]
    assert message in mistake(*terminal, "predict", forecasts.path, *files)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("n,0,heart,1e39\n", "line 2: `value` must be a number that float32 can hold"),
        ("n,0,heart,1e30\n", "the prediction for 'n' is no finite number"),
        ("n,0,heart,1_0\n", "line 2: `value` must be a finite number, but is '1_0'"),
    ],
)
def test_values_that_lead_to_no_prediction_are_named(
    classes: RunFolder, terminal: Terminal, tmp_path: Path, rows: str, message: str
) -> None:
    data, out = tmp_path / "new.csv", tmp_path / "out.csv"
    data.write_text(HEADER + rows)
    files = ["--data", data, "--out", out]
    assert message in mistake(*terminal, "predict", classes.path, *files)
    assert not out.exists()


def test_nothing_overwrites_what_is_read(
    classes: RunFolder, terminal: Terminal, tmp_path: Path
) -> None:
    data = tmp_path / "new.csv"
    data.write_text(f"{HEADER}n,0,heart,1\n")
    files = ["--data", data, "--out", data]
    assert "another file than the one that is read" in mistake(
        *terminal, "predict", classes.path, *files
    )
    assert data.read_text() == f"{HEADER}n,0,heart,1\n"


def test_one_class_alone_has_an_accuracy_but_no_area(
    classes: RunFolder, terminal: Terminal, tmp_path: Path
) -> None:
    data, labels = tmp_path / "new.csv", tmp_path / "new_labels.csv"
    data.write_text(f"{HEADER}n,0,heart,1\nm,0,heart,2\n")
    labels.write_text("id,label\nn,up\nm,up\n")
    command = ["evaluate", classes.path, "--data", data, "--labels", labels]
    output = said(*terminal, *command)
    assert "accuracy" in output
    assert "auroc" not in output
    labels.write_text("id,label\nx,up\n")
    assert "compare the ids" in mistake(*terminal, *command)


def test_sets_of_one_class_are_refused_before_training(tmp_path: Path, terminal: Terminal) -> None:
    base = settings(tmp_path)
    labels = "".join(f"s{series},{'up' if series else 'down'}\n" for series in range(60))
    (tmp_path / "labels.csv").write_text("id,label\n" + labels)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(base))
    line = mistake(*terminal, "train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert "must have series of both classes, down and up, but has only up" in line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"categories": ["label"]}, "must not hold the label, which is predicted"),
        ({"static": ["id"]}, "must not hold the id"),
        ({"static": ["age", "age"]}, "must name 'age' once"),
        ({"columns": {"time": "value"}}, "must be different columns"),
    ],
)
def test_columns_with_two_roles_are_refused(
    tmp_path: Path, data: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        task_from(settings(tmp_path, data=data))


def test_weights_of_another_head_are_refused(
    classes: RunFolder, forecasts: RunFolder, terminal: Terminal, tmp_path: Path
) -> None:
    data = tmp_path / "new.csv"
    data.write_text(f"{HEADER}n,0,heart,1\n")
    files = ["--data", data, "--out", tmp_path / "out.csv", "--model"]
    line = mistake(*terminal, "predict", classes.path, *files, forecasts.model)
    assert "must hold a model with inputs and head as this run has them" in line
    line = mistake(*terminal, "predict", classes.path, *files, tmp_path / "nope")
    assert "`--model` must be a folder with weights" in line
