"""What must hold before a run starts or resumes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import ConfigError, RunError
from ..runs.folder import RunFolder
from .callbacks import Patience
from .checkpoints import checkpoints, state_of, step_of, verify
from .process import on_cpu
from .task import Task

_NOT_TRAINING = ("decoding", "compare")
"""Sections of a config that do not affect training."""


def check_start(task: Task[Any], folder: RunFolder, *, resume: bool, console: Console) -> None:
    """Refuse what cannot be started or resumed.

    Args:
        task: with its settings resolved.
        folder: the run's.
        resume: whether to continue an existing run.
        console: where to print that there is nothing to resume.
    """
    training = task.config.training
    if training.precision == "fp16" and on_cpu():
        raise ConfigError(
            "`precision` of `training` is fp16, which needs a GPU, but there is none; use bf16 or "
            "float32."
        )
    if not folder.started():
        folder.check_unused()
        if resume:
            console.print(
                f"there is nothing to resume in {folder.path}: starting a new run",
                highlight=False,
                markup=False,
            )
        return
    if not resume:
        raise RunError(
            f"{folder.path} holds a run already; continue it with --resume, or choose another "
            "--out."
        )
    _check_task(task, folder)
    before, now = task.previous(folder).dump(), task.config.dump()
    _check_settings(folder, now, before, task.free_settings)
    for latest in checkpoints(folder.checkpoints)[-1:]:
        verify(latest)
        planned = now["training"]["updates"]
        if step_of(latest) > (planned or math.inf):
            raise RunError(
                f"{folder.path} was trained for {step_of(latest)} updates, but the config says "
                f"{planned}."
            )


def _check_task(task: Task[Any], folder: RunFolder) -> None:
    recorded = folder.settings().get("task", "translation")
    if recorded != task.config.task:
        raise RunError(
            f"{folder.path} must hold a run of {task.config.task}, but holds one of {recorded}; "
            "choose another folder."
        )


def _check_settings(
    folder: RunFolder, now: Mapping[str, Any], before: Mapping[str, Any], free: Collection[str]
) -> None:
    """Refuse to resume a run with settings that lead to other weights."""
    for section, value in now.items():
        old = before.get(section)
        if section in _NOT_TRAINING:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            changed = [key for key in value if key not in free and value[key] != old.get(key)]
            if changed:
                raise RunError(
                    f"{folder.path} was started with {section}.{changed[0]} = "
                    f"{old.get(changed[0])!r}, but the config now says {value[changed[0]]!r}; "
                    "resume with the same settings, or choose another --out."
                )
        elif value != old:
            raise RunError(
                f"{folder.path} was started with {section} = {old!r}, but the config now says "
                f"{value!r}; resume with the same settings, or choose another --out."
            )


def check_data(folder: RunFolder, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to resume a run whose data files have changed."""
    for split, before in folder.facts().get("data", {}).items():
        now = fingerprints.get(split, {})
        for key in (key for key in before if key.endswith("sha256")):
            if before[key] != now.get(key):
                side = f" ({key.removesuffix('_sha256')} side)" if key != "sha256" else ""
                raise RunError(
                    f"{folder.path} was started with other {split} data{side}: "
                    f"{before.get('from')} has changed since; restore the old files, or choose "
                    "another --out."
                )


def reached_end(checkpoint: Path, updates: int, patience: int | None) -> bool:
    """Whether a checkpoint is the last one: all updates were made, or early stopping ended it."""
    if step_of(checkpoint) >= updates:
        return True
    return patience is not None and Patience.waited(state_of(checkpoint)) >= patience
