from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floater import recipes
from floater.errors import ConfigError
from floater.tasks import task_from_file
from floater.tasks.glue.kinds import GLUE_TASKS
from floater.tasks.race.task import RaceConfig
from floater.tasks.understanding.config import FineTuning
from floater.tasks.understanding.task import UnderstandingTask

ROOT = Path(__file__).parents[2]
SHARED = {"roberta.yaml", "small.yaml"}
CONFIGS = [
    path
    for folder in ("glue", "mlm", "clm", "squad", "race")
    for path in sorted((ROOT / "configs" / folder).rglob("*.yaml"))
    if not (folder == "glue" and path.name in SHARED)
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_config_is_valid_and_shows_its_command(path: Path) -> None:
    task = task_from_file(path)
    assert isinstance(task, UnderstandingTask)
    assert type(task.config)(**task.config.dump()) == task.config
    content = path.read_text()
    assert any(
        f"floater {command} {path.relative_to(ROOT)}" in content for command in ("train", "compare")
    )
    assert recipes.read(path)["task"] == task.config.task


def test_every_task_of_glue_has_its_configs() -> None:
    for folder in (ROOT / "configs" / "glue", ROOT / "configs" / "glue" / "small"):
        assert {path.stem for path in folder.glob("*.yaml")} - {"roberta", "small"} == set(
            GLUE_TASKS
        )


def test_updates_follow_from_epochs() -> None:
    pace = FineTuning(epochs=3, accumulate=2, warmup=0.1).pace(15)
    assert (pace.updates, pace.warmup, pace.evaluate_every, pace.save_every) == (24, 2, 8, 8)
    assert FineTuning(updates=5, evaluate_every=2).pace(15).updates == 5
    with pytest.raises(ConfigError, match="`take: best` needs a checkpoint at every evaluation"):
        FineTuning(take="best", evaluate_every=5)


def test_the_dynamics_are_frozen_on_race_by_default() -> None:
    task = task_from_file(ROOT / "configs" / "race" / "small.yaml")
    assert isinstance(task, UnderstandingTask)
    assert task.config.training.freeze_flow
    thawed = task_from_file(
        ROOT / "configs" / "race" / "small.yaml", ["training.freeze_flow=false"]
    )
    assert isinstance(thawed, UnderstandingTask)
    assert not thawed.config.training.freeze_flow


@pytest.mark.parametrize(
    "changes",
    [
        {"flow_lr_multiple": 0.05},
        {"flow_weight_decay": 0.3},
        {"freeze_flow": False},
        {"update_every": 7},
    ],
)
def test_the_base_does_not_depend_on_how_the_encoder_is_trained(
    changes: dict[str, Any],
) -> None:
    settings: dict[str, Any] = {"data": {"train": ["a"], "valid": ["b"]}, "model": {"name": "m"}}
    plain, changed = RaceConfig(**settings), RaceConfig(**{**settings, "training": changes})
    assert plain.training.freeze_flow
    assert changed.variants()["base"] == plain.variants()["base"]
    assert changed.variants()["floater"] != plain.variants()["floater"]
