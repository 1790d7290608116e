"""Cases that kill a process before one of its changes of the disk."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM

import floater

from .cases import Case, Verdict
from .processes import Work, run
from .world import World

_CALLS = ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "link")
"""Functions of `os` that change the disk."""


def kills(world: World, draw: random.Random) -> Iterator[Case]:
    """Kill a run before a change of the disk, often twice, resume it, and compare the bits."""
    numbers = list(range(1, 400, 3))
    draw.shuffle(numbers)
    for number in numbers:
        again = draw.randrange(1, 200) if draw.random() < 0.5 else None
        name = f"kill before change {number}{'' if again is None else f', then {again}'}"
        yield Case(name, partial(_kill_and_resume, world, number, again))


def _kill_and_resume(world: World, number: int, again: int | None, place: Path) -> Verdict:
    out = place / "out"
    for limit in (number, again):
        if limit is None:
            continue
        finished = run(world.train(out, before=_die_before(limit)))
        if finished.code not in (-signal.SIGKILL, 0):
            return "traceback" if finished.refused() else finished.outcome(), finished.err
    finished = run(world.train(out))
    if finished.code != 0:
        return "lost" if finished.refused() else finished.outcome(), finished.err
    if not world.same_model(out):
        return "wrong", "other weights"
    remaining = [path.name for path in out.rglob(".*") if path.is_dir()]
    return ("wrong", f"left behind: {remaining}") if remaining else ("right", "")


def kills_of_saving(world: World, draw: random.Random) -> Iterator[Case]:
    """Kill `save_pretrained` over an older save: the old or the new model must remain."""
    numbers = list(range(1, 60))
    draw.shuffle(numbers)
    for number in numbers:
        yield Case(f"save killed before change {number}", partial(_kill_save, world, number))


def _kill_save(world: World, number: int, place: Path) -> Verdict:
    folder = world.copy("model", place)

    def save() -> None:
        model = floater.from_pretrained(AutoModelForMaskedLM, folder)
        attachment = floater.attachment(model)
        assert attachment is not None
        attachment.unbake()
        with torch.no_grad():
            attachment.encoder.initial.add_(1.0)  # type: ignore[operator]
        _die_before(number)()
        floater.save_pretrained(model, folder)

    finished = run(save)
    if finished.code not in (0, -signal.SIGKILL):
        return finished.outcome(), finished.err
    loaded = run(world.outputs(folder))
    if loaded.code != 0:
        return "lost", loaded.err
    if finished.code == 0 and loaded.out == world.references["model"]:
        return "wrong", "the old model after a complete save"
    return "right", ""


def _die_before(limit: int) -> Work:
    """Return work that makes this process kill itself before its n-th change of the disk."""

    def prepare() -> None:
        count = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == limit:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapped

        for name in _CALLS:
            setattr(os, name, counted(getattr(os, name)))

    return prepare
