"""Starting a run, and going on with one: what is refused before any work is done."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..errors import ConfigError, RunError
from .patience import Patience
from .records import RunFolder
from .trainer import checkpoints, state_of, step_of, verify

FREE = frozenset({"log_every", "tensorboard", "keep", "updates"})
"""Training settings that do not change the course of a run: the schedule does not depend on where
it ends.
"""


def on_cpu() -> bool:
    """Whether this machine trains on its CPU."""
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


def check_start(
    folder: RunFolder,
    settings: dict[str, Any],
    before: dict[str, Any] | None,
    *,
    resume: bool,
    console: Console,
    free: Collection[str] = FREE,
) -> None:
    """Refuse what cannot be started or resumed.

    Args:
        folder: the run's.
        settings: the config, as it would be written; `training.precision` and `training.updates`,
            if any, are looked at.
        before: the config as the folder holds it; None if there is no run yet.
        resume: whether the caller wants to go on.
        console: where to tell that there is nothing to go on with.
        free: training settings that may differ from those of the first start.
    """
    training = settings["training"]
    if training["precision"] == "fp16" and on_cpu():
        raise ConfigError(
            "`precision` of `training` is fp16, which needs a GPU, but there is none; use bf16 or "
            "float32."
        )
    if before is None:
        if resume:
            console.print(
                f"there is nothing to resume in {folder.path}: starting anew",
                highlight=False,
                markup=False,
            )
        return
    if not resume:
        raise RunError(
            f"{folder.path} holds a run already; go on with --resume, or choose another --out."
        )
    _same(folder, settings, before, free)
    for latest in checkpoints(folder.checkpoints)[-1:]:
        verify(latest)
        if step_of(latest) > (training["updates"] or math.inf):
            raise RunError(
                f"{folder.path} was trained for {step_of(latest)} updates, but the config says "
                f"{training['updates']}."
            )


def _same(
    folder: RunFolder, now: dict[str, Any], before: dict[str, Any], free: Collection[str]
) -> None:
    """Refuse to resume a run with settings that change its course."""
    for part, value in now.items():
        old = before.get(part)
        if isinstance(value, dict) and isinstance(old, dict):
            changed = [key for key in value if key not in free and value[key] != old.get(key)]
            if changed and part != "decoding":
                raise RunError(
                    f"{folder.path} was started with {part}.{changed[0]} = {old.get(changed[0])!r},"
                    f" but the config now says {value[changed[0]]!r}; resume with the same "
                    "settings, or choose another --out."
                )
        elif value != old:
            raise RunError(
                f"{folder.path} was started with {part} = {old!r}, but the config now says "
                f"{value!r}."
            )


def finished(checkpoint: Path, updates: int, patience: int | None) -> bool:
    """Whether all updates were made, or patience ran out."""
    if step_of(checkpoint) >= updates:
        return True
    return patience is not None and Patience.waited(state_of(checkpoint)) >= patience
