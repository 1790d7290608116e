"""Solvers a user passes in: a tableau together with the rule that chooses the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import ArgumentError
from .tableaus import DORMAND_PRINCE_5, EULER, MIDPOINT, RUNGE_KUTTA_4, Tableau


def _require_positive(solver: object, field: str) -> None:
    value = getattr(solver, field)
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise ArgumentError(
            f"`{field}` of {type(solver).__name__} must be a positive finite number, but is "
            f"{value!r}."
        )


@dataclass(frozen=True)
class Adaptive:
    """Steps as long as the tolerance allows, chosen by a PI rule on the estimated local error.

    Args:
        rtol: allowed error of a step relative to the state.
        atol: allowed error of a step where the state is near zero.
        max_steps: give up with an error after so many accepted and rejected steps, or earlier if
            their steady pace shows that several times as many would be needed.
        max_step: never step further than this; `None` leaves it to the error estimate.
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


@dataclass(frozen=True)
class FixedStep:
    """Steps of one length, on the grid start + n·step.

    Args:
        step: length of a step; the paper uses a fifth of Δ.
        max_steps: refuse to take more steps than this.
    """

    step: float
    max_steps: int = 1_000_000

    tableau: ClassVar[Tableau]

    def __post_init__(self) -> None:
        for field in ("step", "max_steps"):
            _require_positive(self, field)


@dataclass(frozen=True)
class Dopri5(Adaptive):
    """Dormand-Prince 5(4) with dense output; the default solver."""

    tableau: ClassVar[Tableau] = DORMAND_PRINCE_5


@dataclass(frozen=True)
class RK4(FixedStep):
    """The classical Runge-Kutta method of order 4 (the paper's choice for translation)."""

    tableau: ClassVar[Tableau] = RUNGE_KUTTA_4


@dataclass(frozen=True)
class Midpoint(FixedStep):
    """The explicit midpoint rule, order 2 (the paper's choice for long inputs)."""

    tableau: ClassVar[Tableau] = MIDPOINT


@dataclass(frozen=True)
class Euler(FixedStep):
    """Euler's rule, order 1."""

    tableau: ClassVar[Tableau] = EULER


Solver = Adaptive | FixedStep
