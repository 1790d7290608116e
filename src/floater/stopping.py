"""Ctrl-C and SIGTERM: a command ends within moments and in one line, wherever it stands.

Nothing is lost by that: all files are written aside and renamed, so a command may be killed at any
time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

GRACE = 2.0
"""Seconds that a command has to tidy up; then its process ends all the same, also where it waits in
compiled code.
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stop:
    """What is known about being stopped; there is one process, so there is one of these."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.number: int | None = None
        self.unsaid = [
            True
        ]  # who takes it out says the line; taking is atomic, a lock would not be safe in a handler
        self.before: dict[int, Any] = {}  # handlers, while ours are in their place


_stop = _Stop()


def asked() -> bool:
    """Whether a signal asked this process to stop."""
    return _stop.number is not None


def listen() -> None:
    """Raise KeyboardInterrupt at Ctrl-C and SIGTERM, end the process at once at a second one, and
    in any case after `GRACE`.

    Does nothing outside the main thread, or where it was called before.
    """
    if _stop.before or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _SIGNALS:
        _stop.before[number] = signal.getsignal(number)
        if _stop.before[number] != signal.SIG_IGN:  # as in the background of a script
            signal.signal(number, _handle)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def rest() -> None:
    """Undo `listen`, unless a signal has come: the process is then about to end."""
    if not _stop.before or asked():
        return
    for number, handler in _stop.before.items():
        signal.signal(number, handler)
    _stop.before.clear()
    os.close(signal.set_wakeup_fd(-1))


def leave() -> None:
    """End the process now, in one line, with the exit code of its signal."""
    number = _stop.number or signal.SIGINT
    with contextlib.suppress(IndexError, OSError):
        _stop.unsaid.pop()
        cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
        name = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        os.write(
            2,
            f"{cursor}floater: stopped{name} "
            f"after {time.perf_counter() - _stop.begun:.0f} s.\n".encode(),
        )
        with contextlib.suppress(Exception):
            sys.stdout.flush()
    os._exit(128 + number)


def _handle(number: int, frame: FrameType | None) -> None:
    if asked():
        leave()
    _stop.number = number
    # from here on nobody else speaks: what breaks while everything is taken down is not worth a
    # traceback
    silent: Callable[..., Any] = lambda *_: None  # noqa: E731
    sys.unraisablehook = threading.excepthook = silent
    sys.excepthook = lambda *_: leave()
    raise KeyboardInterrupt


def _watch(reader: int) -> None:
    """End the process after the grace, whatever its main thread does: Python's handlers wait while
    it runs compiled code.
    """
    with os.fdopen(reader, "rb", buffering=0) as signals:
        while found := signals.read(1):
            if found[0] in _SIGNALS:
                time.sleep(GRACE)
                _stop.number = _stop.number or found[0]
                leave()
