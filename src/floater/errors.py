"""The exceptions of this package; all derive from :class:`FloaterError`."""

from __future__ import annotations

import sys
from functools import partial


def brief(value: object) -> str:
    """A value for a message: its repr if that is one short line, otherwise its type."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def first_line(error: Exception, line: int = 0) -> str:
    """A non-empty line of another library's message; the class of the error if it has none.

    Args:
        error: the error.
        line: which line, counted from 0.
    """
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[min(line, len(lines) - 1)] if lines else type(error).__name__


class FloaterError(Exception):
    """Base class of all errors that this package raises intentionally."""


class ArgumentError(FloaterError, ValueError):
    """An argument has the wrong value, shape or type."""


class ConfigError(ArgumentError):
    """A setting is unknown, missing or has a wrong value."""


class TimesError(ArgumentError):
    """Times are empty, not finite, negative, decreasing or before the start of a trajectory."""


class LengthError(ArgumentError):
    """A position lies beyond what an encoder (or a baked table) covers."""


class RangeWarning(UserWarning):
    """A model is used at later times than it was trained on."""


class DataError(ArgumentError):
    """A data file is missing, malformed, or does not match the other files."""


class RunError(FloaterError, RuntimeError):
    """A run folder is missing, exists already, is in use, or lacks what was requested."""


class LayoutError(ArgumentError):
    """A model has no sites to attach to, or they do not match the encoder."""


def caller_level() -> int:
    """Return the `stacklevel` with which a warning names the line of the user's program, not one of
    this package, of torch or of transformers.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "floater",
        "torch",
        "transformers",
        "accelerate",
    ):
        level, frame = level + 1, frame.f_back
    return level


class AttachmentError(FloaterError, RuntimeError):
    """An attachment cannot be used like this in its current state."""


class SavedError(FloaterError, RuntimeError):
    """A saved attachment is missing, damaged, or belongs to another model."""


class SolverError(FloaterError, RuntimeError):
    """The solver cannot continue.

    Attributes:
        time: the last time it reached.
        magnitude: the largest absolute value of the state at that time.
    """

    def __init__(self, message: str, *, time: float, magnitude: float) -> None:
        super().__init__(message)
        self.time = time
        self.magnitude = magnitude

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), time=self.time, magnitude=self.magnitude), (str(self),)


class StepSizeUnderflow(SolverError):
    """No step is small enough to meet the tolerance."""


class StateOverflow(SolverError):
    """The state or its derivative is no longer finite."""


class TooManySteps(SolverError):
    """The maximum number of steps was reached."""


class StaleTrajectoryError(FloaterError, RuntimeError):
    """The weights of the dynamics were changed in place after the trajectory was solved."""
