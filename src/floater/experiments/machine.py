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
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..recipes import read
from ..tasks.translation.config import TranslationConfig
from ..training.records import CONFIG, RunFolder
from .arms import Arm

Runs = dict[str, list[RunFolder]]
"""The runs of each arm, by key, one a seed."""
_LOOK = 0.5  # seconds between two looks at the runs


class Work(Protocol):
    """What a process of its own can do while others do the same."""

    @property
    def label(self) -> str:
        """What its bar is called."""
        ...

    @property
    def total(self) -> int:
        """Where its bar ends."""
        ...

    def step(self) -> tuple[int, str]:
        """How far it is, and what to say beside it."""
        ...

    def perform(self, console: Console | None = None) -> None:
        """Do it, or go on with it; in silence unless there is a console."""
        ...


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

    @property
    def total(self) -> int:
        """The updates it takes."""
        return self.config.training.updates

    def step(self) -> tuple[int, str]:
        """The last update that was logged, and what to say beside it."""
        rows = list(RunFolder(self.path).metrics())
        step = max((row.get("step", 0) for row in rows), default=0)
        losses = [row["loss"] for row in rows if "loss" in row]
        if step >= self.total:
            return step, "translating the test set"
        return step, f"loss {losses[-1]:.2f}" if losses else "reading and encoding"

    def perform(self, console: Console | None = None) -> None:
        """Make the run, or go on with it; its test set is translated at the end."""
        from ..tasks.translation import run  # noqa: PLC0415  (a worker imports it, the parent need not)

        run.train(self.config, self.path, resume=self.path.exists(), console=console or Console(file=StringIO()))


def job_of(arm: Arm, settings: Mapping[str, Any], seed: int, folder: Path, *, several: bool = False) -> Job:
    """The run of an arm with a seed; `several` seeds are told apart in its label."""
    found = {**settings, "seed": seed}
    if arm.after is not None:
        found["init_from"] = folder / f"{arm.after}-seed{seed}"
    label = f"{arm.name}, seed {seed}" if several else arm.name
    return Job(label, TranslationConfig(**found), folder / f"{arm.key}-seed{seed}")


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
    several = len(seeds) > 1
    jobs = {(arm.key, seed): job_of(arm, settings[arm.key], seed, folder, several=several) for arm in arms for seed in seeds}
    waves = [[jobs[arm.key, seed] for seed in seeds for arm in arms if (arm.after is None) == first] for first in (True, False)]
    for wave in waves:
        _wave(wave, workers, apart, console)
    return {arm.key: [RunFolder(jobs[arm.key, seed].path) for seed in seeds] for arm in arms}


def _wave(jobs: Sequence[Job], workers: int, apart: bool, console: Console) -> None:
    todo = [job for job in jobs if not job.finished()]
    kept = len(jobs) - len(todo)
    if kept:
        console.print(f"{kept} of {len(jobs)} runs were finished earlier and are kept", highlight=False)
    if workers == 1 and not (apart and "RANK" not in os.environ):  # under accelerate all processes make each run together
        for job in todo:
            console.print(f"training {job.label} …", highlight=False)
            job.perform(Console(quiet=True) if os.environ.get("RANK", "0") != "0" else console)
    elif todo:
        side_by_side(todo, workers, console)


def side_by_side(jobs: Sequence[Work], workers: int, console: Console) -> None:
    """Several at a time, each in its own process, with a bar for each."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_watch_parent, max_tasks_per_child=1)
    with _bars(console) as bars, pool:
        tasks: list[tuple[Work, TaskID, Future[None]]] = [
            (job, bars.add_task(job.label, total=job.total, words="waiting"), pool.submit(job.perform)) for job in jobs
        ]
        told: set[str] = set()
        while True:
            for job, task, future in tasks:
                if future.done() and job.label not in told:
                    told.add(job.label)
                    future.result()
                    bars.update(task, completed=job.total, words="done")
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
