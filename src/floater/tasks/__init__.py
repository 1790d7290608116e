"""Tasks: one folder each, with a config and a class that implements `training.task.Task`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..errors import ConfigError, first_line
from ..recipes import read
from ..runs.folder import CONFIG, RunFolder
from ..training.task import Task

TASKS = {
    "translation": "translation.task:TranslationTask",
    "glue": "glue.task:GlueTask",
    "masked_lm": "masked_lm.task:MaskedLMTask",
    "squad": "squad.task:SquadTask",
    "race": "race.task:RaceTask",
}
"""The class of each task, by its name in config files; imported when it is used."""
GROUP = "floater.tasks"
"""Entry points by which other packages add tasks."""


def task_from(settings: Mapping[str, Any], where: str = "The config") -> Task[Any]:
    """The task that settings describe.

    Args:
        settings: as in a config file; checked here.
        where: name of the settings, for messages.
    """
    name = settings.get("task", "translation")
    installed = (
        {}
        if isinstance(name, str) and name in TASKS
        else {entry.name: entry for entry in entry_points(group=GROUP)}
    )
    if not isinstance(name, str) or name not in {*TASKS, *installed}:
        known = ", ".join([*TASKS, *installed])
        raise ConfigError(f"{where}: `task` must be one of {known}, but is {name!r}.")
    if name in installed:
        task_class: type[Task[Any]] = installed[name].load()
    else:
        module, class_name = TASKS[name].split(":")
        task_class = getattr(import_module(f".{module}", __name__), class_name)
    return task_class(task_class.config_class(**settings))


def task_from_file(config: Path, overrides: Sequence[str] = ()) -> Task[Any]:
    """The task that a config file describes.

    Args:
        config: the file.
        overrides: settings to change, such as `training.updates=100`.
    """
    return task_from(read(config, overrides), str(config))


def task_of_run(path: Path) -> Task[Any]:
    """The task of an existing run."""
    return task_from_file(RunFolder.existing(path).path / CONFIG)
