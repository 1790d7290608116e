"""The solvers that a user chooses from: a Runge-Kutta method together with a step rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import ArgumentError
from .step_rules import AdaptiveSteps, FixedSteps, StepRule
from .tableaus import DORMAND_PRINCE_5, EULER, MIDPOINT, RUNGE_KUTTA_4, Tableau

_FINEST_RTOL = 1e-6  # in units of a type's rounding error; no step could meet a finer one


def _require_positive(solver: object, field: str) -> None:
    value = getattr(solver, field)
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise ArgumentError(
            f"`{field}` of {type(solver).__name__} must be a positive finite number, but is "
            f"{value!r}."
        )


@dataclass(frozen=True)
class Adaptive:
    """Steps as long as the tolerance allows, chosen by PI control of the estimated local error.

    Args:
        rtol: allowed error of a step relative to the state.
        atol: allowed error of a step where the state is near zero.
        max_steps: raise an error after this many accepted and rejected steps, or earlier if their
            steady pace shows that several times as many would be needed.
        max_step: length of the longest step allowed; `None` leaves it to the error estimate.
    """

    rtol: float = 1e-4
    atol: float = 1e-5
    max_steps: int = 100_000
    max_step: float | None = None

    tableau: ClassVar[Tableau]

    def __post_init__(self) -> None:
        for field in ("rtol", "atol", "max_steps"):
            _require_positive(self, field)
        if self.max_step is not None:
            _require_positive(self, "max_step")

    def step_rule(self, first_step: float | None = None) -> StepRule:
        """Build the rule of a new solve; by default it guesses the length of the first step."""
        return AdaptiveSteps(self.rtol, self.atol, self.max_steps, self.max_step, first_step)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise if no step computed in this type could ever meet the tolerance."""
        least = _FINEST_RTOL * torch.finfo(dtype).eps
        if self.rtol < least:
            alternative = ", or solve in float64" if dtype == torch.float32 else ""
            raise ArgumentError(
                f"`rtol` of {type(self).__name__} must be at least {least:.1e} for {dtype}, but is "
                f"{self.rtol:g}, which is too fine for its rounding; loosen rtol{alternative}."
            )


@dataclass(frozen=True)
class FixedStep:
    """Steps of one length, on the grid start + n·step.

    Args:
        step: length of a step; the paper uses a fifth of Δ.
        max_steps: raise an error instead of taking more steps than this.
    """

    step: float
    max_steps: int = 1_000_000

    tableau: ClassVar[Tableau]

    def __post_init__(self) -> None:
        for field in ("step", "max_steps"):
            _require_positive(self, field)

    def step_rule(self, first_step: float | None = None) -> StepRule:
        """Build the rule of a new solve; the first step is as long as all others."""
        return FixedSteps(self.step, self.max_steps)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Accept every type: there is no tolerance to meet."""


@dataclass(frozen=True)
class Dopri5(Adaptive):
    """Dormand-Prince 5(4) with dense output; the default solver."""

    tableau: ClassVar[Tableau] = DORMAND_PRINCE_5


@dataclass(frozen=True)
class RK4(FixedStep):
    """The classical Runge-Kutta method of order 4, used by the paper for translation."""

    tableau: ClassVar[Tableau] = RUNGE_KUTTA_4


@dataclass(frozen=True)
class Midpoint(FixedStep):
    """The explicit midpoint rule, order 2, used by the paper for long inputs."""

    tableau: ClassVar[Tableau] = MIDPOINT


@dataclass(frozen=True)
class Euler(FixedStep):
    """Euler's rule, order 1."""

    tableau: ClassVar[Tableau] = EULER


Solver = Adaptive | FixedStep
