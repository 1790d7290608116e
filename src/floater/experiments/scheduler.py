"""Runs of an experiment: variants × seeds, several at a time; finished ones are kept, stopped ones
go on.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import RunError
from ..room import check_folder
from ..runs.folder import RunFolder
from ..tasks import task_from
from ..training.resume import check_start
from ..training.task import Task
from .variants import Variant

Runs = dict[str, list[RunFolder]]
"""The runs of each variant, by key, one a seed."""
_LOOK = 0.5  # seconds between two looks at the runs
_PATIENCE = 0.7  # seconds that a process has to end once it was told to


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
    task: Task[Any]
    path: Path

    def finished(self) -> bool:
        """Whether this run, with the same settings, is finished."""
        return self.task.is_finished(RunFolder(self.path))

    @property
    def total(self) -> int:
        """The number of updates."""
        return int(self.task.config.dump()["training"]["updates"])

    def step(self) -> tuple[int, str]:
        """The last update that was logged, and a text beside it."""
        rows = list(RunFolder(self.path).metrics())
        step = max((row.get("step", 0) for row in rows), default=0)
        losses = [row["loss"] for row in rows if "loss" in row]
        if step >= self.total:
            return step, "evaluating"
        return step, f"loss {losses[-1]:.2f}" if losses else "reading and encoding"

    def check(self) -> None:
        """Raise an error for everything that would stop this run and can be known in advance."""
        self.task.check(self.path)
        folder = RunFolder(self.path)
        if folder.started():
            check_start(self.task.resolve(), folder, resume=True, console=Console(quiet=True))

    def perform(self, console: Console | None = None) -> None:
        """Make the run, or resume it; its test set is evaluated at the end."""
        from ..training.run import run  # noqa: PLC0415  (imported by workers only)

        printer = console or Console(file=StringIO(), markup=False)
        run(self.task, self.path, resume=self.path.exists(), console=printer)


def job_of(
    variant: Variant, settings: Mapping[str, Any], seed: int, folder: Path, *, several: bool = False
) -> Job:
    """The run of a variant with a seed; the label names the seed if there are `several`."""
    complete = {**settings, "seed": seed}
    if variant.after is not None:
        complete["init_from"] = folder / f"{variant.after}-seed{seed}"
    label = f"{variant.name}, seed {seed}" if several else variant.name
    return Job(label, task_from(complete), folder / f"{variant.key}-seed{seed}")


def run_all(
    variants: Sequence[Variant],
    settings: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    folder: Path,
    *,
    workers: int,
    console: Console,
    apart: bool = False,
) -> Runs:
    """Make the runs of all variants with all seeds.

    Args:
        variants: what is compared; a variant comes after the one it is warm-started from.
        settings: of each variant, by key.
        seeds: of the runs.
        folder: where the run folders go, as ARM-seedN.
        workers: runs at a time, each in a process of its own; 1 makes them here.
        console: where to tell what happens.
        apart: give each run a process of its own also where they are made one at a time.
    """
    check_folder(folder)
    several = len(seeds) > 1
    jobs = {
        (variant.key, seed): job_of(variant, settings[variant.key], seed, folder, several=several)
        for variant in variants
        for seed in seeds
    }
    for job in jobs.values():
        if not job.finished():
            job.check()
    waves = [
        [
            jobs[variant.key, seed]
            for seed in seeds
            for variant in variants
            if (variant.after is None) == first
        ]
        for first in (True, False)
    ]
    for wave in waves:
        _wave(wave, workers, apart, console)
    return {
        variant.key: [RunFolder(jobs[variant.key, seed].path) for seed in seeds]
        for variant in variants
    }


def _wave(jobs: Sequence[Job], workers: int, apart: bool, console: Console) -> None:
    todo = [job for job in jobs if not job.finished()]
    kept = len(jobs) - len(todo)
    if kept:
        console.print(
            f"{kept} of {len(jobs)} runs were finished earlier and are kept",
            highlight=False,
            markup=False,
        )
    if workers == 1 and not (
        apart and "RANK" not in os.environ
    ):  # under accelerate all processes make each run together
        for job in todo:
            console.print(f"training {job.label} …", highlight=False, markup=False)
            job.perform(Console(quiet=True) if os.environ.get("RANK", "0") != "0" else console)
    elif todo:
        side_by_side(todo, workers, console)


def side_by_side(jobs: Sequence[Work], workers: int, console: Console) -> None:
    """Several at a time, each in its own process, with a bar for each.

    However this ends (a job that fails, Ctrl-C), no process is left and none is started any more:
    what a run has written so far is whole, and it goes on from there.
    """
    waiting = deque(jobs)
    running: list[_Worker] = []
    with _bars(console) as bars:
        tasks = {
            id(job): bars.add_task(job.label, total=job.total, words="waiting") for job in jobs
        }
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_Worker(waiting.popleft()))
                for worker in [one for one in running if one.ended()]:
                    running.remove(worker)
                    worker.result()
                    bars.update(tasks[id(worker.job)], completed=worker.job.total, words="done")
                    if not console.is_terminal:
                        console.print(
                            f"trained and tested {worker.job.label}", highlight=False, markup=False
                        )
                if console.is_terminal:
                    for worker in running:
                        step, words = worker.job.step()
                        bars.update(tasks[id(worker.job)], completed=step, words=words)
                wait([sign for worker in running for sign in worker.signs], _LOOK)
        finally:
            for worker in running:
                worker.stop()
            for worker in running:
                worker.bury()


class _Worker:
    """A process that does one job and hands over how it ended."""

    def __init__(self, job: Work) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._inbox, outbox = context.Pipe(duplex=False)
        self._process = context.Process(target=_perform, args=(job, outbox))
        with _without_interrupts():
            self._process.start()
        outbox.close()
        self.signs: list[Any] = [self._inbox, self._process.sentinel]

    def ended(self) -> bool:
        """Whether the job is done, or its process over."""
        return self._inbox.poll() or not self._process.is_alive()

    def result(self) -> None:
        """Raise what the job raised, or that its process died."""
        try:
            error = self._inbox.recv()
        except (EOFError, OSError):
            self._process.join()
            error = self._died()
        self.bury()
        if error is not None:
            raise error

    def _died(self) -> RunError:
        code = self._process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        why = ", perhaps for lack of memory" if code == -9 else ""
        return RunError(
            f"The process of {self.job.label} {how}{why}, before it was done; the same command goes"
            " on with it."
        )

    def stop(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def bury(self) -> None:
        """Wait until it has ended, by force if need be."""
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_PATIENCE)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which a terminal sends to all: their parent ends them.

    Ours waits meanwhile.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _perform(job: Work, outbox: Connection) -> None:
    """What a worker does."""
    _watch_parent()
    error: BaseException | None = None
    try:
        job.perform()
    except BaseException as raised:
        error = raised
    outbox.send(None if error is None else _portable(error))
    outbox.close()
    if error is not None:
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """An exception that another process can raise; one that cannot be pickled becomes its text."""
    try:
        found = pickle.loads(pickle.dumps(error))
        return (
            error
            if type(found) is type(error) and str(found) == str(error)
            else RuntimeError(str(error))
        )
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _watch_parent() -> None:
    """End this worker with its parent, however that ends, so that nobody else writes into a run
    that is resumed.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
