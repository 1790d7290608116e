"""Locks: a run folder is used by one command at a time, and a process that dies releases it."""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ..errors import RunError
from ..files import writing

try:
    fcntl: Any = importlib.import_module("fcntl")
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"
"""File of a run folder that names the process that uses it."""
_TURN = ".turn"  # held for the moment in which scores are added
_PATIENCE = 60.0  # seconds to wait for a turn, which takes milliseconds
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_held: dict[tuple[int, Path], tuple[int, bool]] = {}
"""By process and folder: how often it is locked, and whether exclusively."""
_guard = threading.Lock()


@contextmanager
def in_use(
    folder: Path, doing: str, *, exclusive: bool = True, create: bool = False
) -> Iterator[None]:
    """Lock a folder for this process; other processes get an error that names this one.

    A process may lock a folder several times, as training evaluates at its end. Of several
    processes that share a run (`accelerate launch`), the first one holds the lock for all. The
    system releases the lock of a process that dies; where there are no such locks, a lock of a
    process that no longer exists is taken over.

    Args:
        folder: of a run or of a comparison.
        doing: the command, for the message, such as train.
        exclusive: False shares the lock with others who do the same, such as evaluations.
        create: create the folder; it is removed again if nothing was written into it.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    created = _make(folder) if create else []
    key = (os.getpid(), folder.resolve())
    with _guard:
        count, held_exclusively = _held.get(key, (0, exclusive))
        if count:
            _held[key] = (count + 1, held_exclusively)
    if count:
        try:
            yield
        finally:
            with _guard:
                _held[key] = (_held[key][0] - 1, held_exclusively)
        return
    try:
        with _locked(folder, doing, exclusive=exclusive):
            with _guard:
                _held[key] = (1, exclusive)
            try:
                yield
            finally:
                with _guard:
                    del _held[key]
    finally:
        for place in reversed(created):
            with suppress(OSError):  # there is something in it, as there should be
                place.rmdir()


@contextmanager
def score_lock(folder: Path) -> Iterator[None]:
    """Serialise changes to the records of a run: other processes wait."""
    path = folder / _TURN
    end = time.monotonic() + _PATIENCE
    while True:
        file = _take(path, exclusive=True)
        if file is not None:
            break
        if time.monotonic() > end:
            raise RunError(
                f"{folder} must be free for new scores within {_PATIENCE:.0f} s, but {_who(path)} "
                "holds it; end that process."
            )
        time.sleep(0.02)
    try:
        yield
    finally:
        _give_back(path, file)


@contextmanager
def _locked(folder: Path, doing: str, *, exclusive: bool) -> Iterator[None]:
    path = folder / LOCK
    file = _take(path, exclusive=exclusive)
    if file is None:
        raise RunError(
            f"{folder} is in use by {_who(path)}; wait until it has ended, or choose another "
            "folder. Nothing was changed."
        )
    try:
        with writing(path):
            _write_holder(file, doing, exclusive=exclusive)
        yield
    finally:
        _give_back(path, file)


def _make(folder: Path) -> list[Path]:
    """Create a folder; returns the folders that were missing, outermost first."""
    missing: list[Path] = []
    for place in (folder, *folder.parents):
        if place.exists():
            break
        missing.insert(0, place)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


# The lock itself ----------------------------------------------------------------------------------


def _take(path: Path, *, exclusive: bool) -> IO[bytes] | None:
    """Open and lock the file; None if another process holds it."""
    if fcntl is None:
        return _take_by_name(path)
    while True:
        before = path.exists()
        file = path.open("ab+")
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if _same(file, path):  # otherwise its owner has removed it meanwhile
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                file.close()
                if not before:
                    path.unlink(missing_ok=True)
                return _take_by_name(path)
            file.close()
            raise
        except BaseException:
            file.close()
            raise
        file.close()


def _take_by_name(path: Path) -> IO[bytes] | None:
    """Without system locks: whoever creates the file holds it; that of a dead process goes."""
    for _ in range(2):
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            if any(_alive(holder) for holder in _holders(path)) or _fresh(path):
                return None
            path.unlink(missing_ok=True)
            continue
        return os.fdopen(handle, "rb+")
    return None


def _give_back(path: Path, file: IO[bytes]) -> None:
    """Release the lock, and remove the file unless others share it."""
    last = True
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            last = False
            if _same(file, path):
                path.unlink(missing_ok=True)
    except BlockingIOError:
        last = False
    except OSError:  # there are no such locks here
        pass
    finally:
        file.close()
        if last:
            path.unlink(missing_ok=True)


def _same(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


# Who holds it -------------------------------------------------------------------------------------


def _write_holder(file: IO[bytes], doing: str, *, exclusive: bool) -> None:
    """Write who holds the lock; processes that share one write a line each."""
    if exclusive:
        file.truncate(0)
    about = {
        "process": os.getpid(),
        "began": _beginning(os.getpid()),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "doing": doing,
    }
    file.write(json.dumps(about).encode() + b"\n")
    file.flush()


def _holders(path: Path) -> list[dict[str, Any]]:
    found = []
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                about = json.loads(line)
                if isinstance(about, dict):
                    found.append(about)
    return found


def _alive(holder: dict[str, Any]) -> bool:
    """Whether the process still runs; on another machine it may.

    A process number that was reused does not count.
    """
    if holder.get("host") != socket.gethostname():
        return True
    number = holder.get("process")
    if not isinstance(number, int) or number <= 0:
        return False
    if not _runs(number):
        return False
    began = _beginning(number)
    return began is None or holder.get("began") is None or began == holder["began"]


def _runs(process: int) -> bool:
    """Whether a process with this number exists."""
    if sys.platform == "win32":  # there, signal 0 would end it
        kernel, code = ctypes.windll.kernel32, ctypes.c_ulong()
        handle = kernel.OpenProcess(0x1000, False, process)
        if not handle:
            return bool(kernel.GetLastError() == 5)
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        kernel.CloseHandle(handle)
        return code.value == 259
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _beginning(process: int) -> str | None:
    """When a process started, in ticks since boot; None if the system cannot tell."""
    try:
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError, ValueError):
        return None


def _fresh(path: Path) -> bool:
    """Whether a file without a name was just created, by a process about to write it."""
    try:
        return not _holders(path) and time.time() - path.stat().st_mtime < 2
    except OSError:
        return False


def _who(path: Path) -> str:
    holders = _holders(path)
    for holder in [one for one in holders if _alive(one)] or holders:
        return (
            f"process {holder.get('process')} on {holder.get('host')} since {holder.get('since')} "
            f"(floater {holder.get('doing')})"
        )
    return "another process"
