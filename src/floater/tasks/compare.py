"""`floater compare`: several configs, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import ConfigError
from ..files import write_text
from . import task_of
from .understanding.commands import Understanding
from .understanding.tables import markdown


def compare_configs(
    configs: Sequence[Path], overrides: Sequence[str], out: Path, *, resume: bool, console: Console
) -> str:
    """Compare the arms of each config, in a folder each, and write one table over all.

    Args:
        configs: config files; all are read before anything starts.
        overrides: settings to change, as `training.updates=100`.
        out: folder for the runs and the table.
        resume: go on with what the folder holds.
        console: where to tell what happens.

    Returns:
        The table, as comparison.md holds it.
    """
    tasks: dict[str, Understanding] = {}
    for config in configs:
        task = task_of(config, overrides)
        if not isinstance(task, Understanding):
            raise ConfigError(
                f"{config}: `task` must be one of understanding for a comparison, but is "
                "translation; use --against."
            )
        if config.stem in tasks:
            raise ConfigError(
                f"{config}: config files must have different names, but two are called "
                f"{config.stem}."
            )
        tasks[config.stem] = task
    if len(tasks) > 1:
        for task in tasks.values():
            task.check()
    found = [
        task.compare(out / name, resume=resume, console=console) for name, task in tasks.items()
    ]
    table = markdown(found)
    write_text(out / "comparison.md", table)
    return table
