"""Ctrl-C and SIGTERM: a command ends within seconds, with one line.

Nothing is lost: every file is written under a temporary name and then renamed, so a command may be
killed at any time.
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
"""Seconds that a command has to clean up; then its process ends, even inside compiled code."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _State:
    """The signal that arrived, if any, and the handlers to restore; one per process."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.number: int | None = None
        # Whoever takes the only entry prints the line. Taking it is atomic; a lock would not be
        # safe in a signal handler.
        self.unprinted = [True]
        self.previous_handlers: dict[int, Any] = {}


_state = _State()


def requested() -> bool:
    """Whether a signal has asked this process to stop."""
    return _state.number is not None


def listen() -> None:
    """Raise KeyboardInterrupt at Ctrl-C and SIGTERM, and make sure that the process ends.

    It ends immediately at a second signal, and after `GRACE` seconds in any case. Does nothing
    outside the main thread, or if it was called before.
    """
    if _state.previous_handlers or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _SIGNALS:
        _state.previous_handlers[number] = signal.getsignal(number)
        # a script ignores Ctrl-C for the commands that it runs in the background
        if _state.previous_handlers[number] != signal.SIG_IGN:
            signal.signal(number, _handle)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def stop_listening() -> None:
    """Undo `listen`, unless a signal has arrived: then the process is about to end."""
    if not _state.previous_handlers or requested():
        return
    for number, handler in _state.previous_handlers.items():
        signal.signal(number, handler)
    _state.previous_handlers.clear()
    os.close(signal.set_wakeup_fd(-1))


def exit_now() -> None:
    """End the process, with one line and the exit code of its signal."""
    number = _state.number or signal.SIGINT
    with contextlib.suppress(IndexError, OSError):
        _state.unprinted.pop()
        cursor = "\x1b[?25h" if os.isatty(2) else ""  # progress bars hide it
        name = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        seconds = time.perf_counter() - _state.started
        os.write(2, f"{cursor}floater: stopped{name} after {seconds:.0f} s.\n".encode())
        with contextlib.suppress(Exception):
            sys.stdout.flush()
    os._exit(128 + number)


def _handle(number: int, frame: FrameType | None) -> None:
    if requested():
        exit_now()
    _state.number = number
    # errors during the shutdown are not worth a traceback
    silent: Callable[..., Any] = lambda *_: None  # noqa: E731
    sys.unraisablehook = threading.excepthook = silent
    sys.excepthook = lambda *_: exit_now()
    raise KeyboardInterrupt


def _watch(reader: int) -> None:
    """End the process after `GRACE`: Python's own handlers wait while compiled code runs."""
    with os.fdopen(reader, "rb", buffering=0) as signals:
        while received := signals.read(1):
            if received[0] in _SIGNALS:
                time.sleep(GRACE)
                _state.number = _state.number or received[0]
                exit_now()
