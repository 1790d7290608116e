"""Tasks: data, model and metric of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ..errors import ConfigError
from ..recipes import read
from ..training.records import RunFolder


class Task(Protocol):
    """What a config file describes."""

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        """Train into a run folder."""
        ...


def task_of(config: Path, overrides: Sequence[str] = ()) -> Task:
    """The task that a config file describes, its settings checked."""
    settings: dict[str, Any] = read(config, overrides)
    kind = settings.get("task", "translation")
    if kind == "translation":
        from .translation.commands import Translation  # noqa: PLC0415  (each task imports only its own)
        from .translation.config import TranslationConfig  # noqa: PLC0415

        return Translation(TranslationConfig(**settings))
    raise ConfigError(f"{config}: `task` must be translation, but is {kind!r}.")
