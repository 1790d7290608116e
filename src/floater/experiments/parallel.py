"""Jobs in worker processes, several at the same time, with progress bars."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import RunError
from ..printing import print_text

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
