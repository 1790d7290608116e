"""The gradient "discrete": exact for the steps taken, by a sweep over the recorded stages."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import StaleTrajectoryError
from .device import runs_ahead, to_device
from .fields import Carry, StageBlock
from .gradient_method import (
    GradientMethod,
    GradientProblem,
    apply,
    full_precision,
    just_after,
    refuse_second_order,
)
from .kernel import mix, unpick_rows
from .output import OutputRequest, evaluate
from .output_rows import OutputPlaces, OutputRows, index
from .pieces import Pieces
from .stepper import Stepper


class DiscreteGradient(GradientMethod):
    """The exact gradient of the steps that were taken; step lengths are constants."""

    uses_tape = True

    def __init__(self, problem: GradientProblem, stepper: Stepper) -> None:
        super().__init__(problem, stepper)
        self._last: _LastCall | None = None

    @property
    def differentiable(self) -> bool:
        return self._stepper.keep_stages

    def states(self, request: OutputRequest) -> Tensor:
        stepper, times, inputs = self._stepper, request.times, self._inputs()
        if times.requires_grad and not stepper.steps:  # the slope at the start needs a step
            with torch.no_grad():
                stepper.advance(just_after(stepper.start))
        cached = self._last.states(request) if self._last is not None else None
        states = apply(_Discrete, stepper, request, cached, times, *inputs)
        if stepper.keep_dense and cached is None:
            self._last = _LastCall(request, states)
        return states

    def pieces(self, end: float) -> Pieces:
        """Return the polynomials of the steps up to a time."""
        stepper, inputs = self._stepper, self._inputs()
        with torch.no_grad():
            stepper.advance(max(end, just_after(stepper.start)))
        steps = int(np.searchsorted(stepper.grid[1:], end, side="left")) + 1
        flat = apply(_Coefficients, stepper, steps, *inputs)
        return Pieces(
            flat.view(steps, -1, *self._problem.given_initial.shape),
            np.asarray(stepper.grid[: steps + 1], dtype=np.float64),
            np.asarray(stepper.lengths[:steps], dtype=np.float64),
        )

    def _inputs(self) -> tuple[Tensor, ...]:
        """Return p(start) and the current θ; raise if gradients are requested in vain."""
        inputs = (self._problem.initial.reshape(-1), *self._problem.inputs())
        if (
            not self._stepper.keep_stages
            and torch.is_grad_enabled()
            and any(tensor.requires_grad for tensor in inputs)
        ):
            raise StaleTrajectoryError(
                "This trajectory was solved without gradients (torch.no_grad), but gradients are "
                "requested now; solve again with gradients enabled, or call it under "
                "torch.no_grad()."
            )
        return inputs


class _LastCall:
    """The states of the last call: a training step requests the same times again and again."""

    def __init__(self, request: OutputRequest, states: Tensor) -> None:
        self._times, self._sorted = request.ascending.copy(), request.order is None
        self._states = states.detach()
        self._version = self._states._version

    def states(self, request: OutputRequest) -> Tensor | None:
        """Return the states if the times are the same and nobody has overwritten the states."""
        valid = self._sorted and request.order is None and self._states._version == self._version
        return self._states if valid and np.array_equal(request.ascending, self._times) else None


class _Discrete(torch.autograd.Function):
    """One reverse sweep propagates the state's cotangent stage by stage.

    Weight gradients follow in one matrix product per block of steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        stepper: Stepper,
        request: OutputRequest,
        cached: Tensor | None,
        times: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        with full_precision(stepper):
            out = evaluate(stepper, request) if cached is None else cached.detach()
        ctx.stepper, ctx.request = stepper, request
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        stepper: Stepper = ctx.stepper
        _, _, _, needs_times, *needs_inputs = ctx.needs_input_grad
        with full_precision(stepper):
            outputs = _Outputs(stepper, ctx.request, gradient.contiguous())
            grad_times = outputs.time_gradient() if needs_times else None
            if not any(needs_inputs):
                return (None, None, None, grad_times, *[None] * len(needs_inputs))
            grad_initial, grad_inputs = reverse_sweep(stepper, outputs)
        return (None, None, None, grad_times, grad_initial, *grad_inputs)


class _Coefficients(torch.autograd.Function):
    """The polynomials [steps, degree + 1, size] of the first steps; their cotangents enter the same
    reverse sweep.
    """

    @staticmethod
    def forward(ctx: Any, stepper: Stepper, steps: int, *inputs: Tensor) -> Tensor:
        ctx.stepper = stepper
        return torch.stack([stepper.dense.window(step) for step in range(steps)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        _, _, *needs_inputs = ctx.needs_input_grad
        if not any(needs_inputs):
            return (None, None, *[None] * len(needs_inputs))
        with full_precision(ctx.stepper):
            grad_initial, grad_inputs = reverse_sweep(ctx.stepper, _CoefficientCotangents(gradient))
        return (None, None, grad_initial, *grad_inputs)


class Cotangents(Protocol):
    """What a reverse sweep starts from.

    Attributes:
        steps: number of steps that anything depends on.
    """

    steps: int

    def before_any_step(self) -> Tensor:
        """Return the sum of the cotangents, for a solve without any step."""

    def moments(self, first: int, out: Tensor, later: Tensor) -> None:
        """Compute the cotangents [steps, degree, size] of the polynomials of consecutive steps.

        Args:
            first: number of the first step.
            out: the result; written.
            later: cotangent of p at the end of the last of them when called, at the start of the
                first on return.
        """


class _CoefficientCotangents:
    """Cotangents [steps, degree + 1, size] of polynomials."""

    def __init__(self, gradient: Tensor) -> None:
        self._gradient = gradient
        self.steps = len(gradient)

    def before_any_step(self) -> Tensor:
        raise AssertionError("there is at least one polynomial")

    def moments(self, first: int, out: Tensor, later: Tensor) -> None:
        _add_later(self._gradient[first : first + len(out)], out, later)


def _add_later(cotangents: Tensor, out: Tensor, later: Tensor) -> None:
    """Compute `Cotangents.moments` from the cotangents [steps, degree + 1, size] of polynomials."""
    for step in reversed(range(len(out))):
        torch.add(cotangents[step, 1:], later, out=out[step])
        later += cotangents[step, 0]


class _Outputs:
    """Cotangents of the requested states, gathered step by step."""

    def __init__(self, stepper: Stepper, request: OutputRequest, gradient: Tensor) -> None:
        self._stepper, self._request, self._gradient = stepper, request, gradient
        ends = np.asarray(stepper.grid[1:], dtype=np.float64)
        past = np.searchsorted(request.ascending, ends, side="right")
        self._bounds = np.concatenate(([0], past))
        self._type = np.float32 if gradient.dtype == torch.float32 else np.float64
        inside = np.nonzero(np.diff(self._bounds))[0]
        self.steps = int(inside[-1]) + 1 if len(inside) else 0  # steps that any output depends on

    def _inside(self, step: int) -> tuple[NDArray[np.float64], Tensor] | None:
        """Return θ [n] and cotangents [n, size] of the outputs inside one step, if any."""
        begin, end = self._bounds[step], self._bounds[step + 1]
        if begin == end:
            return None
        times, order = self._request.ascending[begin:end], self._request.order
        theta = (times - self._stepper.grid[step]) / self._stepper.lengths[step]
        if order is None:
            return theta, self._gradient[begin:end]
        rows = torch.from_numpy(order[begin:end]).to(self._gradient.device)
        return theta, self._gradient[rows]

    def before_any_step(self) -> Tensor:
        return self._gradient.sum(0)

    def moments(self, first: int, out: Tensor, later: Tensor) -> None:
        if self._stepper.mixes and self._request.order is None:
            _add_later(self._of_polynomials(first, len(out)), out, later)
            return
        if runs_ahead(out) and self._moments_at_once(first, out, later):
            return
        for step in reversed(range(len(out))):
            self._step_moments(first + step, out[step], later)

    def _of_polynomials(self, first: int, count: int) -> Tensor:
        """Return the cotangents [count, degree + 1, size] of the polynomials of some steps, by the
        kernel.
        """
        terms = self._stepper.tableau.degree + 1
        found = OutputPlaces.of(self._stepper, self._request.ascending, first, count)
        if found is None:
            return self._gradient.new_zeros(count, terms, self._gradient.shape[1])
        cotangents = self._gradient[found.times]
        rows = unpick_rows(found.powers, found.places, cotangents, count * terms)
        return rows.view(count, terms, -1)

    def _moments_at_once(self, first: int, out: Tensor, later: Tensor) -> bool:
        """Compute the cotangents of many steps with a few operations; whether that was done."""
        request, count = self._request, len(out)
        rows = OutputRows.of(self._stepper, request.ascending, first, count)
        if rows is None or rows.wasteful:
            return False
        steps, powers = rows.on_device(out)
        numbers = rows.times if request.order is None else request.order[rows.times]
        cotangents = self._gradient[index(numbers, out)].view(*powers.shape[:2], -1)
        gathered = out.new_zeros(count, powers.shape[2], out.shape[2])
        gathered.index_copy_(0, steps, powers.transpose(1, 2) @ cotangents)
        after = gathered[:, 0].flip(0).cumsum(0).flip(0)  # of a step's own outputs and all later
        torch.add(gathered[:, 1:], later, out=out)
        out[:-1].add_(after[1:].unsqueeze(1))
        later += after[0]
        return True

    def _step_moments(self, step: int, out: Tensor, later: Tensor) -> None:
        inside = self._inside(step)
        if inside is None:
            out.copy_(later)
            return
        theta, cotangents = inside
        powers = torch.from_numpy(
            np.vander(theta, out.shape[0] + 1, increasing=True).T.astype(self._type, order="C")
        )
        if self._stepper.mixes:
            room = cotangents.new_empty(len(powers), cotangents.shape[1])
            gathered = mix(powers, cotangents, room)
        else:
            gathered = powers.to(out.device) @ cotangents
        torch.add(gathered[1:], later, out=out)
        later += gathered[0]

    def time_gradient(self) -> Tensor:
        """Return ⟨cotangent, dp/dt⟩ for each requested time, in the shape of the times."""
        times = self._request.times
        result = self._gradient.new_zeros(len(self._request))
        for step in range(self.steps):
            inside = self._inside(step)
            if inside is None:
                continue
            theta, cotangents = inside
            products = cotangents @ self._stepper.dense.window(step)[1:].t()
            degrees = np.arange(1, products.shape[1] + 1)
            slopes = torch.from_numpy(
                degrees * theta[:, None] ** (degrees - 1) / self._stepper.lengths[step]
            )
            rows = slice(self._bounds[step], self._bounds[step + 1])
            order = self._request.order
            target = rows if order is None else torch.from_numpy(order[rows])
            result[target] = (products * slopes.to(products.device, products.dtype)).sum(1)
        return result.to(times.device, times.dtype).view(times.shape)


def reverse_sweep(
    stepper: Stepper, outputs: Cotangents
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of p(start) and of the field's inputs."""
    return _Sweep(stepper, outputs).run()


class _Sweep:
    """One pass over all steps, from the last to the first."""

    def __init__(self, stepper: Stepper, outputs: Cotangents) -> None:
        self._stepper, self._outputs = stepper, outputs
        tableau, self._initial = stepper.tableau, stepper.field.initial
        zeros, width = self._initial.new_zeros, stepper.field.width
        self._reverse = stepper.field.reverse()
        # dL/dp at the end of the current step, through p alone
        self._later = zeros(self._initial.numel())
        self._carry = Carry(zeros(tableau.stages, width), zeros(width), zeros(width))
        self._dense = torch.tensor(tableau.dense, dtype=torch.float64).t()  # [degree, S]
        self._nodes = torch.tensor(tableau.nodes, dtype=torch.float64)
        # Column s couples stage s to the stages after it. What comes after the step depends on the
        # new state as stage S does.
        coupling = torch.tensor(tableau.coupling, dtype=torch.float64)
        self._coupling = to_device(torch.cat((coupling, coupling[-1:])), self._initial)

    def run(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return the gradients of p(start) and of the field's inputs."""
        if not self._outputs.steps:
            no_cotangent = self._initial.new_zeros(self._stepper.field.width)
            return self._reverse.finish(no_cotangent, self._later + self._outputs.before_any_step())
        for first, count, tape in self._stepper.tape.blocks(self._outputs.steps):
            self._block(first, count, tape)
        tail = self._carry.tail
        return self._reverse.finish(tail[-1] + tail[0], self._later)

    def _block(self, first: int, count: int, tape: Tensor) -> None:
        """Go back through `count` steps from number `first` on."""
        stepper, reverse, carry = self._stepper, self._reverse, self._carry
        moments = self._initial.new_empty(count, stepper.tableau.degree, self._initial.numel())
        self._outputs.moments(first, moments, self._later)
        lengths = torch.tensor(stepper.lengths[first : first + count], dtype=torch.float64)
        begins = torch.tensor(stepper.grid[first : first + count], dtype=torch.float64)
        times = begins.unsqueeze(1) + self._nodes * lengths.unsqueeze(1)  # [count, S]
        weights = to_device(self._dense * lengths.view(-1, 1, 1), self._initial)
        couplings = self._coupling * to_device(lengths, self._initial).view(-1, 1, 1)
        block = StageBlock(times, tape)
        outputs = reverse.output_cotangents(moments, weights, block)
        slopes = self._initial.new_empty(len(tape), stepper.field.width)
        reverse.open_block(block)
        reverse.steps(couplings, slopes, outputs, carry)
        if first:
            slopes[0].zero_()  # this stage belongs to the block before
        else:
            slopes[0].copy_(carry.shared_slope)
            reverse.stage(0, slopes[0], carry.shared_outputs, carry.tail[0])
            reverse.gather(0, carry.tail[:1])
        reverse.close_block(slopes)
