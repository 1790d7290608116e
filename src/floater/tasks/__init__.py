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
    "causal_lm": "causal_lm.task:CausalLMTask",
    "squad": "squad.task:SquadTask",
    "race": "race.task:RaceTask",
    "series": "series.task:SeriesTask",
    "events": "events.task:EventsTask",
    "documents": "documents.task:DocumentsTask",
    "embeddings": "embeddings.task:EmbeddingsTask",
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
    task_class = _class_of(name) if isinstance(name, str) else None
    if task_class is None:
        known = ", ".join([*TASKS, *sorted(entry_points(group=GROUP).names)])
        raise ConfigError(f"{where}: `task` must be one of {known}, but is {name!r}.")
    return task_class(task_class.config_class(**settings))


def _class_of(name: str) -> type[Task[Any]] | None:
    """The class of a task; None if there is no such task."""
    if name in TASKS:
        module, class_name = TASKS[name].split(":")
        task_class: type[Task[Any]] = getattr(import_module(f".{module}", __name__), class_name)
        return task_class
    for entry in entry_points(group=GROUP, name=name):
        try:
            installed: type[Task[Any]] = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"The entry point {name} = {entry.value} of {GROUP} must name a task, but cannot "
                f"be loaded: {first_line(error).rstrip('.')}; repair or uninstall its package."
            ) from None
        return installed
    return None


def task_from_file(config: Path, overrides: Sequence[str] = ()) -> Task[Any]:
    """The task that a config file describes.

    Args:
        config: the file.
        overrides: settings to change, such as `training.updates=100`.
    """
    return task_from(read(config, overrides), str(config))


def task_of_run(path: Path) -> Task[Any]:
    """The task of an existing run."""
    folder = RunFolder.existing(path)
    return task_from(folder.settings(), str(folder.path / CONFIG))
