"""A comparison that the previous version wrote can still be read, evaluated and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from command_line import said
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder
from floater.tasks import task_of_run
from floater.tasks.compare import compare, run_folders
from floater.tasks.glue.task import GlueTask

FIXTURE = Path(__file__).parents[1] / "fixtures" / "version1"
COMPARED = Path("compare-rte")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixture as the working directory, to which its configs are relative."""
    for name in (COMPARED.name, "world"):
        shutil.copytree(FIXTURE / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_comparison_and_its_scores_are_read() -> None:
    comparison = Comparison.from_file(FIXTURE / COMPARED / COMPARISON)
    assert (comparison.task, comparison.main, comparison.base) == ("glue", "accuracy", "base")
    assert comparison.seeds == [0]
    assert comparison.start["0"].identical
    assert comparison.training_seconds == {"base": [1.5], "floater": [1.3]}
    (row,) = comparison.rows
    assert (row.variant, row.against, row.test_set) == ("floater", "base", "valid")
    assert (row.measure, row.examples) == ("accuracy", 20)
    assert (row.base, row.other, row.low, row.high, row.p_value) == (50.0, 50.0, 0.0, 0.0, 1.0)
    assert row.seeds == {"base": [50.0], "floater": [50.0]}
    for name in ("base-0", "floater-0"):
        folder = RunFolder.existing(FIXTURE / COMPARED / name)
        assert folder.finished()
        scores = folder.scores().sets["valid"]
        assert (scores.scores["accuracy"].score, scores.scores["accuracy"].interval) == (50.0, 22.5)
        assert scores.examples == scores.data["rows"] == 20


@pytest.mark.parametrize("name", ["base-0", "floater-0"])
def test_a_run_is_evaluated_to_the_recorded_scores(
    copy: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.existing(copy / COMPARED / name)
    predictions = folder.predictions / "valid.json"
    recorded, before = folder.scores().sets["valid"], json.loads(predictions.read_text())
    output = said(monkeypatch, capsys, "evaluate", COMPARED / name)
    assert f"{name}, valid: accuracy 50.00 ± 22.50 (20 examples)" in output
    again = folder.scores().sets["valid"]
    for measure, score in recorded.scores.items():
        assert again.scores[measure].score == score.score
        assert again.scores[measure].interval == score.interval
    assert (again.data, again.examples) == (recorded.data, recorded.examples)
    after = json.loads(predictions.read_text())
    assert [row["prediction"] for row in after] == [row["prediction"] for row in before]
    for ours, theirs in zip(after, before, strict=True):  # rounding depends on the threads
        assert ours["logits"] == pytest.approx(theirs["logits"], abs=1e-6)


def test_a_resumed_comparison_repeats_no_run(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Comparison.from_file(COMPARED / COMPARISON)
    task = task_of_run(COMPARED / "floater-0")
    folders = [folder for runs in run_folders(task, COMPARED).values() for folder in runs]
    assert all(folder.finished() for folder in folders)
    monkeypatch.setattr(GlueTask, "build_model", None)
    after = compare(task, COMPARED, resume=True, console=Console(quiet=True))
    assert after.rows == before.rows
    assert (after.start, after.training_seconds) == (before.start, before.training_seconds)
    assert Comparison.from_file(COMPARED / COMPARISON) == after
