"""What a command says on stderr: its warnings, and how it ended, in one line each."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from . import stopping
from .errors import FloaterError, RangeWarning, first_line

INTERRUPTED = 130
"""Exit code after Ctrl-C, also typer's."""
_LINE_BREAK = re.compile(r"\s*[\n\r\v\f\x85\u2028\u2029]\s*")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_MESSAGE = 2000
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Unable to allocate",
    "bad allocation",
)
"""Messages of torch and numpy, which raise many classes of errors when memory runs out."""


def run_app(app: typer.Typer) -> int:
    """Run a command line with the arguments of this process.

    Mistakes of the user end in one line and exit code 2, Ctrl-C in one line and 130, SIGTERM in one
    line and 143, and defects of this package in one line and 1.

    Args:
        app: the commands.

    Returns:
        The exit code.
    """
    stopping.listen()
    try:
        with _short_warnings():
            return _run(app)
    finally:
        stopping.stop_listening()


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Inside, our own warnings are one line, without the place in the code they come from."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, RangeWarning):
            _print_error(f"warning: {message}")
        else:
            usual(message, category, *where)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = usual


def _run(app: typer.Typer) -> int:
    started = time.perf_counter()
    _prepare_output()
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="floater", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:  # before or after a command; typer returns the code otherwise
        code = INTERRUPTED
    except Exception as error:
        if stopping.requested():  # many libraries turn Ctrl-C into an error of their own
            stopping.exit_now()
        if os.environ.get("FLOATER_TRACEBACK") == "1":
            traceback.print_exc()
        code, message = _explain(error)
        _print_error(message)
        _discard_output()
        return code
    if code == INTERRUPTED:
        if stopping.requested():
            stopping.exit_now()
        _print_error(f"stopped after {time.perf_counter() - started:.0f} s.")
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an exception."""
    if isinstance(error, typer.TyperException):  # typer would print a box of five lines
        context = getattr(error, "ctx", None)
        hint = f" See `{context.command_path} --help`." if context is not None else ""
        message = str(getattr(error, "format_message", error.__str__)())
        return 2, message.rstrip(".?") + ("?" if message.endswith("?") else ".") + hint
    if isinstance(error, FloaterError):
        return 2, str(error)
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'a file'} cannot be used: {error.strerror or error}."
    return _explain_unexpected(error)


def _explain_unexpected(error: Exception) -> tuple[int, str]:
    """The same for limits of the machine and for defects of this package."""
    text = first_line(error)
    if isinstance(error, MemoryError) or any(phrase in str(error) for phrase in _OUT_OF_MEMORY):
        advice = "use a smaller model, a smaller batch or shorter inputs"
        return 2, f"there is not enough memory ({text}); {advice}."
    if isinstance(error, RecursionError):
        return 2, f"the input is nested too deeply ({text}); reduce the nesting."
    if isinstance(error, typer.Abort):
        return 2, "the input ended before it was complete; give all of it."
    return (
        1,
        f"{type(error).__name__}: {text}. This is a defect of floater, not a mistake of yours; set "
        "FLOATER_TRACEBACK=1 and run the command again to see the traceback, and report it.",
    )


def _prepare_output() -> None:
    """Accept a missing standard output, and file names that are not valid text."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (never closed)
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if unicode else "backslashreplace")


def _discard_output() -> None:
    """Drop what could not be written, which Python would complain about again when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    """Print one line to stderr, with line breaks and control characters replaced."""
    text = _LINE_BREAK.sub(" ", message.strip())
    line = _CONTROL_CHARACTER.sub(lambda match: repr(match.group())[1:-1], text)
    if len(line) > _MAX_MESSAGE:
        line = f"{line[: _MAX_MESSAGE // 2]} … {line[-_MAX_MESSAGE // 2 :]}"
    with contextlib.suppress(OSError, ValueError):
        typer.echo(f"floater: {line}", err=True)
