"""A solution as its polynomials, one for each step, for many times that share few steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from .gradient_method import apply
from .kernel import pick, picks, unpick


class Turn(Protocol):
    """Applied to states: turns pairs of their columns."""

    def __call__(self, states: Tensor) -> Tensor:
        """Turn states [n, width]."""

    def angles(self, like: Tensor) -> Tensor | None:
        """Return complex numbers of size 1 [n, width / 2] with the angles of the pairs, of the type
        and on the device of real numbers; None if complex numbers do not serve there.
        """


@dataclass(frozen=True, eq=False)
class Pieces:
    """The polynomials of the first steps of a trajectory, differentiable like its states.

    States at thousands of times then cost one reverse sweep, and those of some columns of the state
    can be computed without the others.

    Attributes:
        coefficients: [steps, degree + 1, *initial.shape], those of 1, θ, θ² … with θ = 0 at the
            beginning of a step and 1 at its end.
        grid: times at which the steps begin and end [steps + 1].
        lengths: lengths of the steps [steps].
        turned: for times [n], what is applied to the states [n, width] there.
    """

    coefficients: Tensor
    grid: NDArray[np.float64]
    lengths: NDArray[np.float64]
    turned: Callable[[Tensor], Turn] | None = None

    @property
    def end(self) -> float:
        """The last time they serve."""
        return float(self.grid[-1])

    def locate(self, times: Tensor) -> PiecewiseTimes:
        """Find the steps that times [n] up to the end lie in."""
        flat: NDArray[np.float64] = times.detach().reshape(-1).to("cpu", torch.float64).numpy()
        step = np.searchsorted(self.grid[1:], flat, side="left")
        theta = (flat - self.grid[step]) / self.lengths[step]
        powers = np.vander(theta, self.coefficients.shape[1], increasing=True)
        places = step * self.coefficients.shape[1]
        like = self.coefficients
        return PiecewiseTimes(
            torch.from_numpy(places).to(like.device),
            torch.from_numpy(powers).to(like.device, like.dtype),
            None if self.turned is None else self.turned(times.detach().reshape(-1)),
        )


@dataclass(frozen=True, eq=False)
class PiecewiseTimes:
    """Times [n] with the polynomials that they belong to.

    Attributes:
        places: number of the first coefficient of each time's polynomial, if those of all are one
            matrix [steps · (degree + 1), …].
        powers: 1, θ, θ² … [n, degree + 1].
        turned: what is applied to the states [n, width].
    """

    places: Tensor
    powers: Tensor
    turned: Turn | None = None

    def states(self, coefficients: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the states [n, width] of some columns of the coefficients
        [steps · (degree + 1), width], plus a bias [width] of the same type if there is one.
        """
        angles = None if self.turned is None else self.turned.angles(coefficients)
        served = picks(coefficients) and (bias is None or bias.is_contiguous())
        if served and (self.turned is None or angles is not None):
            return apply(_States, coefficients, bias, angles, self)
        if self.turned is None:
            return self._sums(coefficients, bias)
        states = self.turned(self._sums(coefficients, None))
        return states if bias is None else states + bias

    def _sums(self, coefficients: Tensor, bias: Tensor | None) -> Tensor:
        terms = torch.arange(self.powers.shape[1], device=self.places.device)
        if bias is not None:  # join the constants: a pass over few rows instead of all states
            constant = (torch.arange(len(coefficients), device=bias.device) % len(terms)).eq(0)
            coefficients = torch.addcmul(coefficients, constant.to(bias.dtype).unsqueeze(1), bias)
        states: Tensor = F.embedding_bag(
            self.places.unsqueeze(1) + terms,
            coefficients,
            mode="sum",
            per_sample_weights=self.powers,
        )
        return states


class _States(torch.autograd.Function):
    """Sums of coefficients times powers, turned, and a bias, by the compiled kernel in one pass."""

    @staticmethod
    def forward(
        ctx: Any,
        coefficients: Tensor,
        bias: Tensor | None,
        angles: Tensor | None,
        times: PiecewiseTimes,
    ) -> Tensor:
        ctx.times, ctx.angles, ctx.count = times, angles, len(coefficients)
        return pick(times.powers, times.places, coefficients, bias, angles)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        times: PiecewiseTimes = ctx.times
        rows, bias = unpick(times.powers, times.places, gradient, ctx.count, ctx.angles)
        return rows, bias if ctx.needs_input_grad[1] else None, None, None
