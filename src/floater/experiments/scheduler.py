"""The runs of an experiment (variants × seeds), several at the same time in worker processes.

Interrupted runs are resumed, and finished runs are not repeated.
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
from ..printing import print_text
from ..room import check_folder
from ..runs.folder import RunFolder
from ..tasks import task_from
from ..training.process import main_console
from ..training.resume import check_start
from ..training.task import Task
from .variants import Variant

Runs = dict[str, list[RunFolder]]
"""The runs of each variant, by key, one per seed."""
_POLL_SECONDS = 0.5  # between two updates of the progress bars
_EXIT_SECONDS = 0.7  # that a worker has to end after it was terminated


class Work(Protocol):
    """Something that a worker process can do."""

    @property
    def label(self) -> str:
        """Label of its progress bar."""
        ...

    @property
    def total(self) -> int:
        """Number of steps of its progress bar."""
        ...

    def step(self) -> tuple[int, str]:
        """The current step, and a text for the progress bar."""
        ...

    def perform(self, console: Console | None = None) -> None:
        """Do it or resume it; prints nothing by default."""
        ...


@dataclass(frozen=True)
class Job:
    """A run of a task."""

    label: str
    task: Task[Any]
    path: Path

    def finished(self) -> bool:
        """Whether this run is finished, with the same settings."""
        return self.task.is_finished(RunFolder(self.path))

    @property
    def total(self) -> int:
        """The number of updates."""
        return int(self.task.config.dump()["training"]["updates"])

    def step(self) -> tuple[int, str]:
        """The last logged update, and its loss as text."""
        rows = list(RunFolder(self.path).metrics())
        step = max((row.get("step", 0) for row in rows), default=0)
        losses = [row["loss"] for row in rows if "loss" in row]
        if step >= self.total:
            return step, "evaluating"
        return step, f"loss {losses[-1]:.2f}" if losses else "reading and encoding"

    def check(self) -> None:
        """Raise an error for what would stop this run and can be found out quickly."""
        self.task.check(self.path)
        folder = RunFolder(self.path)
        if folder.started():
            check_start(self.task.resolve(), folder, resume=True, console=Console(quiet=True))

    def perform(self, console: Console | None = None) -> None:
        """Train or resume the run, and evaluate it."""
        from ..training.run import run  # noqa: PLC0415  (used by workers only)

        printer = console or Console(file=StringIO(), markup=False)
        run(self.task, self.path, resume=self.path.exists(), console=printer)


def job_of(
    variant: Variant, settings: Mapping[str, Any], seed: int, folder: Path, *, several: bool = False
) -> Job:
    """The run of a variant with a seed; the label includes the seed if there are `several`."""
    with_seed = {**settings, "seed": seed}
    if variant.after is not None:
        with_seed["init_from"] = folder / f"{variant.after}-seed{seed}"
    label = f"{variant.name}, seed {seed}" if several else variant.name
    return Job(label, task_from(with_seed), folder / f"{variant.key}-seed{seed}")


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
    """Run all variants with all seeds.

    Args:
        variants: the variants; those that are warm-started run after the others.
        settings: settings of each variant, by key.
        seeds: the seeds.
        folder: folder for the run folders, which are called VARIANT-seedN.
        workers: number of runs at the same time, one process per run; 1 uses this process.
        console: where to print progress.
        apart: use one process per run also with one worker.
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
        _run_jobs(wave, workers, apart, console)
    return {
        variant.key: [RunFolder(jobs[variant.key, seed].path) for seed in seeds]
        for variant in variants
    }


def _run_jobs(jobs: Sequence[Job], workers: int, apart: bool, console: Console) -> None:
    unfinished = [job for job in jobs if not job.finished()]
    if len(unfinished) < len(jobs):
        print_finished(console, len(jobs) - len(unfinished), len(jobs))
    distributed = "RANK" in os.environ  # under accelerate, all processes take part in each run
    if workers == 1 and (distributed or not apart):
        for job in unfinished:
            print_text(console, f"training {job.label} …")
            job.perform(main_console(console))
    elif unfinished:
        run_in_parallel(unfinished, workers, console)


def print_finished(console: Console, finished: int, total: int) -> None:
    """Print how many runs are skipped."""
    print_text(console, f"{finished} of {total} runs are already finished")


def run_in_parallel(jobs: Sequence[Work], workers: int, console: Console) -> None:
    """Run several jobs at the same time, one process and one progress bar per job.

    If a job fails, or at Ctrl-C, all worker processes are ended and no others are started. Runs can
    then be resumed.

    Args:
        jobs: what to do.
        workers: number of processes.
        console: where to show the progress bars.
    """
    waiting = deque(jobs)
    running: list[_Worker] = []
    with _Bars(console, jobs) as bars:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_Worker(waiting.popleft()))
                for worker in [worker for worker in running if worker.ended()]:
                    running.remove(worker)
                    worker.result()
                    bars.finish(worker.job)
                bars.update([worker.job for worker in running])
                wait([event for worker in running for event in worker.events], _POLL_SECONDS)
        finally:
            for worker in running:
                worker.terminate()
            for worker in running:
                worker.join()


class _Bars:
    """One progress bar per job on a terminal; otherwise one line per finished job."""

    def __init__(self, console: Console, jobs: Sequence[Work]) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars = {
            id(job): self._progress.add_task(job.label, total=job.total, text="waiting")
            for job in jobs
        }

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, jobs: Sequence[Work]) -> None:
        """Show how far jobs are."""
        for job in jobs if self._console.is_terminal else ():
            step, text = job.step()
            self._progress.update(self._bars[id(job)], completed=step, text=text)

    def finish(self, job: Work) -> None:
        """Show that a job is done."""
        self._progress.update(self._bars[id(job)], completed=job.total, text="done")
        if not self._console.is_terminal:
            print_text(self._console, f"finished {job.label}")


class _Worker:
    """A process that does one job and sends back the exception that it raised, if any."""

    def __init__(self, job: Work) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._inbox, outbox = context.Pipe(duplex=False)
        self._process = context.Process(target=_perform, args=(job, outbox))
        with _without_interrupts():
            self._process.start()
        outbox.close()
        self.events: list[Any] = [self._inbox, self._process.sentinel]

    def ended(self) -> bool:
        """Whether the job is done or its process has ended."""
        return self._inbox.poll() or not self._process.is_alive()

    def result(self) -> None:
        """Raise what the job raised, or an error if its process was killed."""
        try:
            error = self._inbox.recv()
        except (EOFError, OSError):
            self._process.join()
            error = self._died()
        self.join()
        if error is not None:
            raise error

    def _died(self) -> RunError:
        code = self._process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        why = ", perhaps for lack of memory" if code == -9 else ""
        return RunError(
            f"The process of {self.job.label} {how}{why} before it was done; run the same command "
            "again to resume it."
        )

    def terminate(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def join(self) -> None:
        """Wait until the process has ended; kill it if it takes too long."""
        self._process.join(_EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_EXIT_SECONDS)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all; their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _perform(job: Work, outbox: Connection) -> None:
    """The main function of a worker process."""
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
    """An exception that another process can raise; its text if it cannot be pickled."""
    try:
        copy = pickle.loads(pickle.dumps(error))
        same = type(copy) is type(error) and str(copy) == str(error)
        return error if same else RuntimeError(str(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _watch_parent() -> None:
    """End this worker when its parent ends, so that nothing else writes to a resumed run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()
