"""One reverse sweep for several backward passes: cotangents are added up and swept together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..ode import Trajectory, refuse_second_order


class _Collected:
    """The cotangents of a trajectory's outputs, added up over backward passes.

    Args:
        trajectory: where they come from.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self._states: list[tuple[Tensor, Tensor]] = []
        self._coefficients: Tensor | None = None
        self._end = 0.0

    def add_states(self, times: Tensor, cotangents: Tensor) -> None:
        """Add cotangents [n, …] of the states at times [n]."""
        for i, (known, total) in enumerate(self._states):
            shared = min(len(known), len(times))
            if torch.equal(known[:shared], times[:shared]):  # tables of several lengths
                longer = (known, total) if len(known) >= len(times) else (times, cotangents.clone())
                longer[1][:shared] += (cotangents if len(known) >= len(times) else total)[:shared]
                self._states[i] = longer
                return
        self._states.append((times, cotangents.clone()))

    def add_coefficients(self, end: float, cotangents: Tensor) -> None:
        """Add cotangents [steps, …] of the polynomials up to a time."""
        total = self._coefficients
        if total is None or len(total) < len(cotangents):
            self._coefficients = cotangents.clone()
            if total is not None:
                self._coefficients[: len(total)] += total
        else:
            total[: len(cotangents)] += cotangents
        self._end = max(self._end, end)

    def sweep(self) -> None:
        """Add the gradients of everything collected to those of the weights."""
        outputs, cotangents = [], []
        with torch.enable_grad():
            if self._states:
                times = torch.cat([times for times, _ in self._states])
                outputs.append(self.trajectory(times))
                cotangents.append(torch.cat([total for _, total in self._states]))
            if self._coefficients is not None:
                outputs.append(self.trajectory.pieces(self._end).coefficients)
                cotangents.append(self._coefficients)
        for output, total in zip(outputs, cotangents, strict=True):
            if output.requires_grad:  # not if everything was frozen since
                torch.autograd.backward(output, total.reshape(output.shape))


class PendingSweeps:
    """Cotangents of a flow that wait for their reverse sweep."""

    def __init__(self) -> None:
        self._collected: list[_Collected] = []
        self._closed = False

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._collected)

    def states(self, trajectory: Trajectory, times: Tensor, anchor: Tensor) -> Tensor:
        """Return the states at times of any shape; a backward pass only collects.

        Args:
            trajectory: the solution.
            times: when.
            anchor: a weight of the flow that requires a gradient.
        """
        flat = times.detach().reshape(-1).clone()  # the caller may reuse its memory
        with torch.no_grad():
            outputs = trajectory(times)
        shape = (len(flat), *anchor.shape)

        def add(collected: _Collected, cotangents: Tensor) -> None:
            collected.add_states(flat, cotangents.reshape(shape))

        return self._collect(trajectory, outputs, anchor, add)

    def coefficients(self, trajectory: Trajectory, end: float, anchor: Tensor) -> Tensor:
        """Return the polynomials of the steps up to a time; see :meth:`states`."""
        with torch.no_grad():
            outputs = trajectory.pieces(end).coefficients

        def add(collected: _Collected, cotangents: Tensor) -> None:
            collected.add_coefficients(end, cotangents)

        return self._collect(trajectory, outputs, anchor, add)

    def _collect(
        self,
        trajectory: Trajectory,
        outputs: Tensor,
        anchor: Tensor,
        add: Callable[[_Collected, Tensor], None],
    ) -> Tensor:
        def collect(cotangents: Tensor) -> None:
            if self._closed:  # a backward pass after the others were swept
                late = _Collected(trajectory)
                add(late, cotangents)
                late.sweep()
                return
            add(self._of(trajectory), cotangents)

        outcome: Tensor = _Collect.apply(anchor, outputs, collect)  # type: ignore[no-untyped-call]
        return outcome

    def _of(self, trajectory: Trajectory) -> _Collected:
        for collected in self._collected:
            if collected.trajectory is trajectory:
                return collected
        self._collected.append(_Collected(trajectory))
        return self._collected[-1]

    def close(self) -> None:
        """From now on, sweep in every backward pass."""
        self._closed = True

    def sweep(self) -> None:
        """Sweep once for all that waits."""
        waiting, self._collected = self._collected, []
        for collected in waiting:
            collected.sweep()

    def refuse_step(self) -> None:
        """Raise if something waits when an optimiser is about to use the gradients."""
        if self:
            raise ArgumentError(
                "An optimiser step must come after `one_sweep`, whose end completes the gradients, "
                "but is inside it; end the block before optimizer.step()."
            )


class _Collect(torch.autograd.Function):
    """Outputs as they are; their cotangents go to a function instead of the weights."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, outputs: Tensor, collect: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.collect = collect
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        refuse_second_order()
        ctx.collect(gradient.detach())
        return None, None, None
