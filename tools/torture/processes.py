"""Run code in forked processes, with a time limit."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from floater import cli

PATIENCE = 45.0
"""Seconds after which a case counts as hanging."""
_PIPE_SIZE = 2**20
_PR_SET_PDEATHSIG = 1

Work = Callable[[], None]
"""What a process does."""


@dataclass(frozen=True)
class Finished:
    """How a process ended."""

    code: int | None
    """Exit code, negative for a signal; None if it hung."""
    out: str
    err: str

    def messages(self) -> list[str]:
        """Return the lines that begin with the program's name."""
        return [line for line in self.err.splitlines() if line.startswith("floater: ")]

    def refused(self) -> bool:
        """Whether it ended with one line and exit code 2."""
        return self.code == 2 and len(self.messages()) == 1 and "Traceback" not in self.err

    def outcome(self) -> str:
        """Return right, refused, traceback or hang, as far as the way it ended shows."""
        if self.code is None:
            return "hang"
        if self.code == 0 and "Traceback" not in self.err:
            return "right"
        return "refused" if self.refused() else "traceback"


@dataclass(frozen=True)
class Child:
    """A running process, and the pipes with its output."""

    pid: int
    out: int
    err: int


def start(work: Work) -> Child:
    """Start work in its own process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe() for _ in range(2)]  # not files: some cases limit the size of files
    for reader, _ in pipes:
        with contextlib.suppress(OSError):
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)  # room for all of its output
        os.set_blocking(reader, False)
    pid = os.fork()
    if pid:
        for _, writer in pipes:
            os.close(writer)
        return Child(pid, pipes[0][0], pipes[1][0])
    code = 1
    try:
        _prepare([writer for _, writer in pipes])
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:  # before the command installed its own handler
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _prepare(writers: list[int]) -> None:
    """Give a new process its own session, output and settings."""
    os.setsid()
    for number, writer in enumerate(writers, 1):
        os.dup2(writer, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(AttributeError, OSError):  # end with the parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background scripts ignore it


def wait(child: Child, patience: float = PATIENCE) -> Finished:
    """Wait for a process that `start` started, and kill it after `patience` seconds."""
    end = time.monotonic() + patience
    code: int | None = None
    while True:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > end:
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return Finished(code, _drain(child.out), _drain(child.err))


def _drain(pipe: int) -> str:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(pipe, 2**16):
            data += chunk
    os.close(pipe)
    return data.decode(errors="replace")


def run(work: Work, patience: float = PATIENCE) -> Finished:
    """Run work in its own process and wait for it."""
    return wait(start(work), patience)


def command(*arguments: object, before: Work | None = None) -> Work:
    """Return a `floater` command line as work for a process.

    Args:
        arguments: of the command line, without the program's name.
        before: what to do in the process first.
    """

    def work() -> None:
        sys.argv = ["floater", *map(str, arguments)]
        if before is not None:
            before()
        cli.main()

    return work
