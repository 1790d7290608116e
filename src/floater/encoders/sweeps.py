"""One reverse sweep for several backward passes: cotangents are added up and swept together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ode import Trajectory, refuse_second_order

Compute = Callable[[], Tensor]
"""Computes differentiable outputs of a trajectory again."""


@dataclass
class _Collected:
    """The cotangents of some outputs of a trajectory.

    Attributes:
        trajectory: where they come from.
        times: of the outputs, flat; empty for polynomials.
        cotangents: their sum over the backward passes.
        compute: computes these outputs.
    """

    trajectory: Trajectory
    times: NDArray[np.float64]
    cotangents: Tensor
    compute: Compute

    def takes(self, other: _Collected) -> bool:
        """Whether the outputs of one begin with those of the other, so that one sweep serves."""
        shared = min(len(self.times), len(other.times))
        return (
            self.trajectory is other.trajectory
            and (len(self.times) > 0) == (len(other.times) > 0)
            and self.cotangents.shape[1:] == other.cotangents.shape[1:]
            and np.array_equal(self.times[:shared], other.times[:shared])
        )

    def add(self, other: _Collected) -> None:
        if len(other.cotangents) > len(self.cotangents):
            self.times, self.compute = other.times, other.compute
            self.cotangents, shorter = other.cotangents.clone(), self.cotangents
        else:
            shorter = other.cotangents
        self.cotangents[: len(shorter)] += shorter


class PendingSweeps:
    """Cotangents of a flow that wait for their reverse sweep."""

    def __init__(self) -> None:
        self._collected: list[_Collected] = []

    def states(self, trajectory: Trajectory, times: Tensor, anchor: Tensor) -> Tensor:
        """Return the states at times of any shape; a backward pass only collects.

        Args:
            trajectory: the solution.
            times: when.
            anchor: a weight of the flow that requires a gradient.
        """
        flat = times.detach().reshape(-1).to("cpu", torch.float64).numpy()
        shape = (len(flat), -1)

        def compute() -> Tensor:
            return trajectory(times).reshape(shape)

        return self._collect(trajectory, flat, compute, anchor).view(*times.shape, *anchor.shape)

    def coefficients(self, trajectory: Trajectory, end: float, anchor: Tensor) -> Tensor:
        """Return the polynomials of the steps up to a time; see :meth:`states`."""

        def compute() -> Tensor:
            return trajectory.pieces(end).coefficients

        return self._collect(trajectory, np.empty(0), compute, anchor)

    def _collect(
        self,
        trajectory: Trajectory,
        times: NDArray[np.float64],
        compute: Compute,
        anchor: Tensor,
    ) -> Tensor:
        with torch.no_grad():
            outputs = compute()

        def add(cotangents: Tensor) -> None:
            new = _Collected(trajectory, times, cotangents, compute)
            for collected in self._collected:
                if collected.takes(new):
                    collected.add(new)
                    return
            new.cotangents = cotangents.clone()
            self._collected.append(new)

        collected: Tensor = _Collect.apply(anchor, outputs, add)  # type: ignore[no-untyped-call]
        return collected

    def sweep(self) -> None:
        """Add the gradients of everything collected to those of the weights."""
        waiting, self._collected = self._collected, []
        for collected in waiting:
            with torch.enable_grad():
                outputs = collected.compute()
            torch.autograd.backward(outputs, collected.cotangents)


class _Collect(torch.autograd.Function):
    """Outputs as they are; their cotangents go to a function instead of the weights."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, outputs: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        ctx.add = add
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        refuse_second_order()
        ctx.add(gradient.detach())
        return None, None, None
