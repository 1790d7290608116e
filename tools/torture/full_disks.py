"""Cases in which no file may grow past a limit, as on a full disk."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from transformers import AutoModelForMaskedLM

import floater

from .cases import SAVED_ANYWAY, Case, Verdict
from .disk import lost, snapshot
from .processes import Work, command, run
from .world import World

_ACTIONS = ["train", "half", "average", "evaluate", "plot", "report", "save", "rte"]
_LIMITS = (0, 10, 500, 2_000, 8_000, 30_000, 60_000)


def full_disks(world: World, draw: random.Random) -> Iterator[Case]:
    """Give a command, or save a model, while files may not exceed a size."""
    while True:
        action = draw.choice(_ACTIONS)
        limit = draw.choice(_LIMITS)
        attempt = _save if action == "save" else partial(_give_command, action)
        yield Case(
            f"disk full at {limit} bytes a file: {action}",
            partial(attempt, world, partial(_limit_files, limit)),
        )


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _give_command(action: str, world: World, limit_files: Work, place: Path) -> Verdict:
    source = {"half": "half", "rte": "rte"}.get(action, "run")
    folder = place / "new" if action == "train" else world.copy(source, place)
    before = snapshot(folder) if folder.exists() else {}
    finished = run(_work(world, action, folder, place, limit_files))
    after = snapshot(folder) if folder.exists() else {}
    outcome = finished.outcome()
    if outcome == "refused" and action == "half":
        again = run(world.train(folder))
        if again.code != 0 or not world.same_model(folder):
            return "lost", again.err
    elif outcome == "refused" and (changed := lost(before, after, SAVED_ANYWAY)):
        return "lost", f"{changed} {finished.err}"
    return outcome, finished.err


def _work(world: World, action: str, folder: Path, place: Path, before: Work) -> Work:
    if action in ("train", "half"):
        return world.train(folder, before=before)
    options: dict[str, tuple[object, ...]] = {
        "average": ("--last", 2),
        "plot": ("--out", place / "p.png", "--length", 64),
        "report": ("--out", place / "r.html"),
        "evaluate": ("--name", "again"),
        "rte": ("--name", "again"),
    }
    name = "evaluate" if action == "rte" else action
    return command(name, folder, *options[action], before=before)


def _save(world: World, limit_files: Work, place: Path) -> Verdict:
    folder = world.copy("model", place)
    before = snapshot(folder)

    def save() -> None:
        model = floater.from_pretrained(AutoModelForMaskedLM, folder)
        limit_files()
        try:
            floater.save_pretrained(model, folder)
        except floater.FloaterError:
            os._exit(2)

    finished = run(save)
    if finished.code == 2:
        return ("lost" if lost(before, snapshot(folder)) else "refused"), finished.err
    return finished.outcome(), finished.err
