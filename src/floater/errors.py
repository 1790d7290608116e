"""Every mistake a user can make has a class here; all are children of :class:`FloaterError`."""

from __future__ import annotations

from functools import partial


def brief(value: object) -> str:
    """How a message calls a value: as Python prints it, where that is one short line, else by its
    type.
    """
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def first_line(error: Exception, line: int = 0) -> str:
    """A line of another library's message, the first that is not empty unless told; the kind of
    error where it says nothing.
    """
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[min(line, len(lines) - 1)] if lines else type(error).__name__


class FloaterError(Exception):
    """Base class of all errors this package raises on purpose."""


class ArgumentError(FloaterError, ValueError):
    """An argument has the wrong value, shape or type."""


class ConfigError(ArgumentError):
    """A setting is unknown, missing or has a wrong value."""


class TimesError(ArgumentError):
    """Times are empty, not finite, negative, decreasing or before the start of a trajectory."""


class LengthError(ArgumentError):
    """A position lies past what an encoder (or a baked table) can serve."""


class DataError(ArgumentError):
    """A data file is missing, malformed or does not fit its partner."""


class RunError(FloaterError, RuntimeError):
    """A run folder is missing, in the way, or does not hold what is asked of it."""


class LayoutError(ArgumentError):
    """The places to attach to cannot be found in a model, or do not fit."""


class AttachmentError(FloaterError, RuntimeError):
    """An attachment is used in a way that its state does not allow."""


class SavedError(FloaterError, RuntimeError):
    """A saved attachment is missing, damaged, or belongs to another model."""


class SolverError(FloaterError, RuntimeError):
    """The solver cannot go on. Carries where it stood.

    Attributes:
        time: the last time that was reached.
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
    """The state, or its derivative, is no longer finite."""


class TooManySteps(SolverError):
    """The step budget is used up."""


class StaleTrajectoryError(FloaterError, RuntimeError):
    """The weights of the dynamics were changed in place after the trajectory was solved."""
