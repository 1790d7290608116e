"""Tasks: data, model and metric of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ..errors import ConfigError
from ..recipes import read
from ..training.records import CONFIG, RunFolder


class Task(Protocol):
    """What a config file describes."""

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        """Train into a run folder."""
        ...


def _translation(settings: dict[str, Any]) -> Task:
    from .translation.commands import Translation  # noqa: PLC0415  (each task imports only its own)
    from .translation.config import TranslationConfig  # noqa: PLC0415

    return Translation(TranslationConfig(**settings))


def _glue(settings: dict[str, Any]) -> Task:
    from .glue.problem import Glue, GlueConfig  # noqa: PLC0415
    from .understanding.commands import Understanding  # noqa: PLC0415

    return Understanding(Glue, GlueConfig(**settings))


def _masked_lm(settings: dict[str, Any]) -> Task:
    from .masked_lm.commands import MaskedLanguage  # noqa: PLC0415
    from .masked_lm.problem import MaskedConfig, MaskedLM  # noqa: PLC0415

    return MaskedLanguage(MaskedLM, MaskedConfig(**settings))


def _squad(settings: dict[str, Any]) -> Task:
    from .squad.problem import SquadConfig, SquadProblem  # noqa: PLC0415
    from .understanding.commands import Understanding  # noqa: PLC0415

    return Understanding(SquadProblem, SquadConfig(**settings))


def _race(settings: dict[str, Any]) -> Task:
    from .race.problem import RaceConfig, RaceProblem  # noqa: PLC0415
    from .understanding.commands import Understanding  # noqa: PLC0415

    return Understanding(RaceProblem, RaceConfig(**settings))


_TASKS: dict[str, Callable[[dict[str, Any]], Task]] = {
    "translation": _translation,
    "glue": _glue,
    "masked_lm": _masked_lm,
    "squad": _squad,
    "race": _race,
}


def task_of(config: Path, overrides: Sequence[str] = ()) -> Task:
    """The task that a config file describes, its settings checked."""
    settings: dict[str, Any] = read(config, overrides)
    kind = settings.get("task", "translation")
    if not isinstance(kind, str) or kind not in _TASKS:
        raise ConfigError(f"{config}: `task` must be one of {', '.join(_TASKS)}, but is {kind!r}.")
    return _TASKS[kind](settings)


def task_of_run(path: Path) -> Task:
    """The task of a run that was started earlier."""
    return task_of(RunFolder.existing(path).path / CONFIG)
