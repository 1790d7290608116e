"""The configs of series are valid and show their command."""

from __future__ import annotations

from pathlib import Path

import pytest

from floater.tasks import task_from_file
from floater.tasks.series.task import SeriesTask

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "series").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_and_shows_its_command(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATER_DATA", "data")
    task = task_from_file(path)
    assert isinstance(task, SeriesTask)
    assert type(task.config)(**task.config.dump()) == task.config
    assert f"floater train {path.relative_to(ROOT)}" in path.read_text()
