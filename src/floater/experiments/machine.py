"""Runs of an experiment: arms × seeds, several at a time; finished ones are kept, stopped ones go on."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..recipes import read
from ..tasks.translation.config import TranslationConfig
from ..training.records import CONFIG, RunFolder
from .arms import Arm

Runs = dict[str, list[RunFolder]]
"""The runs of each arm, by key, one a seed."""
_LOOK = 0.5  # seconds between two looks at the runs


@dataclass(frozen=True)
class Job:
    """One run to make."""

    label: str
    config: TranslationConfig
    path: Path

    def finished(self) -> bool:
        """Whether this very run, with the same settings, has its scores."""
        folder = RunFolder(self.path)
        if not (self.path / CONFIG).is_file() or "test" not in folder.scores() or not folder.model.is_dir():
            return False
        before, now = (TranslationConfig(**found).dump() for found in (read(self.path / CONFIG), self.config.dump()))
        if now["init_from"] is not None:
            now["vocabulary"] = before["vocabulary"]  # a warm start takes it over
        return before == now and folder.facts().get("updates") == now["training"]["updates"]

    def step(self) -> tuple[int, str]:
        """The last update that was logged, and what to say beside it."""
        rows = list(RunFolder(self.path).metrics())
        step = max((row.get("step", 0) for row in rows), default=0)
        losses = [row["loss"] for row in rows if "loss" in row]
        if step >= self.config.training.updates:
            return step, "translating the test set"
        return step, f"loss {losses[-1]:.2f}" if losses else "reading and encoding"


def run_all(
    arms: Sequence[Arm],
    settings: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    folder: Path,
    *,
    workers: int,
    console: Console,
    apart: bool = False,
) -> Runs:
    """Make the runs of all arms with all seeds.

    Args:
        arms: what is compared; an arm comes after the one it is warm-started from.
        settings: of each arm, by key.
        seeds: of the runs.
        folder: where the run folders go, as ARM-seedN.
        workers: runs at a time, each in a process of its own; 1 makes them here.
        console: where to tell what happens.
        apart: give each run a process of its own also where they are made one at a time.
    """
    jobs: dict[tuple[str, int], Job] = {}
    paths = {(arm.key, seed): folder / f"{arm.key}-seed{seed}" for arm in arms for seed in seeds}
    for arm in arms:
        for seed in seeds:
            found = {**settings[arm.key], "seed": seed}
            if arm.after is not None:
                found["init_from"] = paths[arm.after, seed]
            label = arm.name if len(seeds) == 1 else f"{arm.name}, seed {seed}"
            jobs[arm.key, seed] = Job(label, TranslationConfig(**found), paths[arm.key, seed])
    waves = [[jobs[arm.key, seed] for seed in seeds for arm in arms if (arm.after is None) == first] for first in (True, False)]
    for wave in waves:
        _wave(wave, workers, apart, console)
    return {arm.key: [RunFolder(paths[arm.key, seed]) for seed in seeds] for arm in arms}


def _wave(jobs: Sequence[Job], workers: int, apart: bool, console: Console) -> None:
    todo = [job for job in jobs if not job.finished()]
    kept = len(jobs) - len(todo)
    if kept:
        console.print(f"{kept} of {len(jobs)} runs were finished earlier and are kept", highlight=False)
    if workers == 1 and not apart:
        for job in todo:
            console.print(f"training {job.label} …", highlight=False)
            perform(job, Console(quiet=True) if os.environ.get("RANK", "0") != "0" else console)
    elif todo:
        _side_by_side(todo, workers, console)


def perform(job: Job, console: Console | None = None) -> None:
    """Make one run, or go on with it; its test set is translated at the end."""
    from ..tasks.translation import run  # noqa: PLC0415  (a worker imports it, the parent need not)

    run.train(job.config, job.path, resume=job.path.exists(), console=console or Console(file=StringIO()))


def _side_by_side(jobs: Sequence[Job], workers: int, console: Console) -> None:
    """Several runs at a time, each in its own process, with a bar for each."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_watch_parent, max_tasks_per_child=1)
    with _bars(console) as bars, pool:
        tasks: list[tuple[Job, TaskID, Future[None]]] = [
            (job, bars.add_task(job.label, total=job.config.training.updates, words="waiting"), pool.submit(perform, job))
            for job in jobs
        ]
        told: set[str] = set()
        while True:
            for job, task, future in tasks:
                if future.done() and job.label not in told:
                    told.add(job.label)
                    future.result()
                    bars.update(task, completed=job.config.training.updates, words="done")
                    if not console.is_terminal:
                        console.print(f"trained and tested {job.label}", highlight=False)
                elif future.running() and not future.done():
                    step, words = job.step()
                    bars.update(task, completed=step, words=words)
            if len(told) == len(tasks):
                return
            time.sleep(_LOOK)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _watch_parent() -> None:
    """End this worker with its parent, however that ends, so that nobody else writes into a run that is resumed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
