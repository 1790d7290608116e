"""The example of docs/extend.md is a complete task: it trains, resumes and reports."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.character_lm.task import CharacterConfig, CharacterTask
from safetensors.torch import load_file

from floater import tasks
from floater.errors import ConfigError, DataError, RunError
from floater.report.page import write_report
from floater.runs.encodings import Encodings
from floater.training.run import run
from floater.training.trainer import SafeTrainer

TEXT = Path(__file__).parents[1] / "LICENSE"


def config(text: Path = TEXT, **changes: Any) -> CharacterConfig:
    settings: dict[str, Any] = {
        "data": {"text": text, "length": 16},
        "dim": 16,
        "training": {"updates": 8, "log_every": 1, **changes.pop("training", {})},
        **changes,
    }
    return CharacterConfig(**settings)


def test_a_task_trains_and_shows_up_in_a_report(tmp_path: Path) -> None:
    folder = run(CharacterTask(config()), tmp_path / "run")
    scores = folder.scores().sets
    assert set(scores) == {"test", "twice"}
    assert scores["test"].scores["bits"].score == pytest.approx(
        scores["test"].scores["loss"].score / 0.6931, rel=1e-3
    )
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert losses[-1] < losses[0]
    encodings = Encodings.read(folder.path)
    assert encodings is not None
    assert encodings.tables.shape == (1, 32, 16)
    write_report([folder.path], tmp_path / "page.html")
    assert "bits" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(CharacterTask(config()), tmp_path / "whole")
    step = SafeTrainer.training_step

    def stop(self: SafeTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SafeTrainer, "training_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(CharacterTask(config()), tmp_path / "run")
    with pytest.raises(RunError, match="was started with dim = 16, but the config now says 32"):
        run(CharacterTask(config(dim=32)), tmp_path / "run", resume=True)
    resumed = run(CharacterTask(config()), tmp_path / "run", resume=True)
    ours, theirs = (load_file(one.model / "model.safetensors") for one in (whole, resumed))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    before = (resumed.path / "scores.json").stat().st_mtime_ns
    run(CharacterTask(config()), tmp_path / "run", resume=True)
    assert (resumed.path / "scores.json").stat().st_mtime_ns == before, "a finished run is kept"


def test_other_packages_add_tasks_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("character_lm", "examples.character_lm.task:CharacterTask", tasks.GROUP),
            EntryPoint("broken", "examples.character_lm.task:Nothing", tasks.GROUP),
        ]
    )
    monkeypatch.setattr(tasks, "entry_points", points.select)
    task = tasks.task_from({"task": "character_lm", "data": {"text": "a.txt"}})
    assert isinstance(task, CharacterTask)
    with pytest.raises(ConfigError, match=r"race, .*, broken, character_lm, but is 'x'"):
        tasks.task_from({"task": "x"})
    with pytest.raises(ConfigError, match=r"broken = .* must name a task, but cannot be loaded"):
        tasks.task_from({"task": "broken"})


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(DataError, match="must have more than 320 characters, but has 9"):
        run(CharacterTask(config(tmp_path / "short.txt")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
