"""Three ways to differentiate a solution: exact for the steps taken, the continuous adjoint, plain
autograd.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from .fields import CallableField, Dynamics
from .kernel import mix
from .solvers import Solver
from .stepper import Path, evaluate


class Discrete(torch.autograd.Function):
    """States at given times, with the exact gradient of the steps that were taken.

    One reverse sweep propagates the state's cotangent stage by stage; weight gradients follow in
    one matrix product a block of steps. Step sizes are constants.
    """

    @staticmethod
    def forward(
        ctx: Any,
        path: Path,
        sorted_times: np.ndarray,
        order: np.ndarray | None,
        known: Tensor | None,
        times: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        with _full_precision(path):
            out = evaluate(path, sorted_times, order) if known is None else known.detach()
        ctx.path, ctx.sorted_times, ctx.order = path, sorted_times, order
        ctx.times_like = times
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_order()
        path: Path = ctx.path
        with _full_precision(path):
            outputs = _Outputs(path, ctx.sorted_times, ctx.order, gradient.contiguous())
            grad_times = None
            if ctx.needs_input_grad[4]:
                grad_times = outputs.time_gradient(ctx.times_like)
            if not any(ctx.needs_input_grad[5:]):
                return (
                    None,
                    None,
                    None,
                    None,
                    grad_times,
                    *[None] * (len(ctx.needs_input_grad) - 5),
                )
            grad_initial, grad_inputs = _sweep(path, outputs)
        return (None, None, None, None, grad_times, grad_initial, *grad_inputs)


class _Outputs:
    """Cotangents of the requested states, gathered step by step."""

    def __init__(
        self, path: Path, times: np.ndarray, order: np.ndarray | None, gradient: Tensor
    ) -> None:
        self._path, self._times, self._order, self._gradient = path, times, order, gradient
        ends = np.asarray(path.grid[1:], dtype=np.float64)
        self._bounds = np.concatenate(([0], np.searchsorted(times, ends, side="right")))
        self._type = np.float32 if gradient.dtype == torch.float32 else np.float64
        inside = np.nonzero(np.diff(self._bounds))[0]
        self.steps = int(inside[-1]) + 1 if len(inside) else 0  # steps that any output depends on

    def _piece(self, step: int) -> tuple[np.ndarray, Tensor] | None:
        """θ [n] and cotangents [n, size] of the outputs inside one step."""
        begin, end = self._bounds[step], self._bounds[step + 1]
        if begin == end:
            return None
        theta = (self._times[begin:end] - self._path.grid[step]) / self._path.lengths[step]
        if self._order is None:
            return theta, self._gradient[begin:end]
        return (
            theta,
            self._gradient[torch.from_numpy(self._order[begin:end]).to(self._gradient.device)],
        )

    def before_any_step(self) -> Tensor:
        """Sum of the cotangents when no step was taken at all."""
        return self._gradient.sum(0)

    def moments(self, step: int, out: Tensor, later: Tensor) -> None:
        """Cotangents [degree, size] of the step's polynomial; `later` gathers what flows to p at
        the step's begin.
        """
        piece = self._piece(step)
        if piece is None:
            out.copy_(later)
            return
        theta, cotangents = piece
        powers = torch.from_numpy(
            np.vander(theta, out.shape[0] + 1, increasing=True).T.astype(self._type, order="C")
        )
        if self._path.mixes:
            gathered = mix(
                powers, cotangents, cotangents.new_empty(len(powers), cotangents.shape[1])
            )
        else:
            gathered = powers.to(out.device) @ cotangents
        torch.add(gathered[1:], later, out=out)
        later += gathered[0]

    def time_gradient(self, like: Tensor) -> Tensor:
        """⟨cotangent, dp/dt⟩ for every requested time, in the shape and order in which they were
        requested.
        """
        result = self._gradient.new_zeros(len(self._times))
        for step in range(self.steps):
            piece = self._piece(step)
            if piece is None:
                continue
            theta, cotangents = piece
            products = cotangents @ self._path.dense.window(step)[1:].t()
            degrees = np.arange(1, products.shape[1] + 1)
            slopes = torch.from_numpy(
                degrees * theta[:, None] ** (degrees - 1) / self._path.lengths[step]
            )
            value = (products * slopes.to(products.device, products.dtype)).sum(1)
            begin, end = self._bounds[step], self._bounds[step + 1]
            place = (
                slice(begin, end)
                if self._order is None
                else torch.from_numpy(self._order[begin:end])
            )
            result[place] = value
        return result.to(like.device, like.dtype).view(like.shape)


def _sweep(path: Path, outputs: _Outputs) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The reverse sweep: gradients of p(start) and of the field's inputs."""
    tableau, field = path.tableau, path.field
    stages, degree, size, width = tableau.stages, tableau.degree, field.initial.numel(), field.width
    new = field.initial.new_empty
    reverse = field.reverse()
    later = field.initial.new_zeros(size)  # dL/dp at the end of the current step, by identity
    if not outputs.steps:
        return reverse.finish(field.initial.new_zeros(width), later + outputs.before_any_step())

    dense = torch.tensor(tableau.dense, dtype=torch.float64).t()  # [degree, S]
    nodes = torch.tensor(tableau.nodes, dtype=torch.float64)
    # Column s couples stage s to the stages after it. What lies after the step sees the new state
    # as stage S does.
    coupling = torch.tensor(tableau.coupling, dtype=torch.float64)
    coupling = torch.cat((coupling, coupling[-1:])).to(field.initial)
    from_next = field.initial.new_zeros(
        width
    )  # cotangent of the shared stage's slope, from the step after
    shared = field.initial.new_zeros(width)  # spread of the shared stage, from the step after
    tail = field.initial.new_zeros(
        stages, width
    )  # cotangents of stages 2 … S, then of the inner state after the step
    carried = tail[-1]

    for first, count, kept in path.stages.spans(outputs.steps):
        moments = new(count, degree, size)
        for step in reversed(range(count)):
            outputs.moments(first + step, moments[step], later)
        lengths = torch.tensor(path.lengths[first : first + count], dtype=torch.float64)
        begins = torch.tensor(path.grid[first : first + count], dtype=torch.float64)
        times = begins.unsqueeze(1) + nodes * lengths.unsqueeze(1)  # [count, S]
        weights = (dense * lengths.view(-1, 1, 1)).to(field.initial)
        wide = field.kept_width
        windows = kept.as_strided(
            (count, stages, wide), ((stages - 1) * wide, wide, 1), kept.storage_offset()
        )
        spread = reverse.spread(moments, weights, times, windows)
        slope_cotangents = new(kept.shape[0], width)
        reverse.open_rows(kept, torch.cat((times[:, :-1].reshape(-1), times[-1:, -1])))
        for step in reversed(range(count)):
            base = step * (stages - 1)
            reach = coupling * path.lengths[first + step]
            rows = slope_cotangents[base : base + stages]
            reverse.step(base, tail, reach, rows, from_next, spread[step], shared)
            reverse.gather(base + 1, tail[:-1])
            shared = spread[step, 0]
        head = slope_cotangents[0]
        if first:
            head.zero_()  # this stage belongs to the block before
        else:
            head.copy_(from_next)
            reverse.stage(0, head, shared, tail[0])
            reverse.gather(0, tail[:1])
        reverse.close_rows(slope_cotangents)
    return reverse.finish(carried + tail[0], later)


class Adjoint(torch.autograd.Function):
    """States at given times, with the gradient of Appendix A: a second ODE, solved backwards in
    time.

    The adjoint jumps by the incoming cotangent at every output time. Nothing but the outputs is
    kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        path: Path,
        dynamics: CallableField,
        sorted_times: np.ndarray,
        order: np.ndarray | None,
        times: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        with _full_precision(path):
            out = evaluate(path, sorted_times, order)
        ctx.path, ctx.dynamics, ctx.sorted_times, ctx.order = path, dynamics, sorted_times, order
        ctx.times_like, ctx.inputs = times, inputs[1:]
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_order()
        (out,) = ctx.saved_tensors
        ctx.dynamics.check_unchanged()
        with _full_precision(ctx.path):
            if ctx.order is not None:
                rows = torch.from_numpy(ctx.order).to(out.device)
                out, gradient = out[rows], gradient[rows]
            system = _AdjointSystem(ctx.path, ctx.dynamics, ctx.inputs)
            grad_initial, grad_inputs, grad_times = system.solve(ctx.sorted_times, out, gradient)
            if ctx.order is not None:
                grad_times = torch.empty_like(grad_times).index_copy_(0, rows, grad_times)
        grad_times = grad_times.to(ctx.times_like.device, ctx.times_like.dtype).view(
            ctx.times_like.shape
        )
        return (None, None, None, None, grad_times, grad_initial, *grad_inputs)


class _AdjointSystem:
    """The augmented system (p, a, dL/dθ) in reversed time s = -t."""

    def __init__(self, path: Path, dynamics: Dynamics, inputs: tuple[Tensor, ...]) -> None:
        self._path, self._h, self._inputs = path, dynamics, inputs
        self._size = path.field.initial.numel()

    def __call__(self, reversed_time: float, augmented: Tensor) -> Tensor:
        state, adjoint = augmented[: self._size], augmented[self._size : 2 * self._size]
        with torch.enable_grad():
            state = state.detach().requires_grad_()
            slope = self._h(-reversed_time, state)
        if slope.requires_grad:
            pulled = torch.autograd.grad(
                slope,
                (state, *self._inputs),
                adjoint,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        else:
            pulled = tuple(torch.zeros_like(tensor) for tensor in (state, *self._inputs))
        return torch.cat((-slope.detach(), *[part.reshape(-1) for part in pulled]))

    def solve(
        self, times: np.ndarray, out: Tensor, gradient: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        size, path = self._size, self._path
        weights = sum(tensor.numel() for tensor in self._inputs)
        tail = out.new_zeros(size + weights)  # adjoint, then dL/dθ
        grad_times = out.new_zeros(len(times))
        step: float | None = None
        for i in reversed(range(len(times))):
            state = out[i]
            grad_times[i] = torch.dot(gradient[i], self._h(float(times[i]), state).detach())
            tail[:size] += gradient[i]
            begin = float(times[i - 1]) if i else path.start
            if begin < times[i]:
                tail, step = self._leg(
                    float(times[i]), begin, torch.cat((state, tail)), path.solver, step
                )
        parts = torch.split(tail[size:], [tensor.numel() for tensor in self._inputs])
        grads = tuple(
            part.view(tensor.shape) for part, tensor in zip(parts, self._inputs, strict=True)
        )
        return tail[:size].clone(), grads, grad_times

    def _leg(
        self, begin: float, end: float, augmented: Tensor, solver: Solver, step: float | None
    ) -> tuple[Tensor, float | None]:
        field = CallableField(self, augmented, -begin, inputs=())
        leg = Path(field, solver, -begin, keep_stages=False, keep_dense=False, first_step=step)
        leg.advance(-end, clip=True)
        return leg.state[self._size :].clone(), leg.proposal


def replay(
    path: Path, dynamics: Dynamics, initial: Tensor, begin: int, state: Tensor
) -> list[Tensor]:
    """The polynomials [degree + 1, size] of the path's steps from number `begin` on, as
    differentiable tensors.

    This is plain backpropagation: every operation of every step is recorded.
    """
    tableau = path.tableau
    dense = torch.tensor(tableau.dense, dtype=torch.float64).t().to(initial)
    polynomials = []
    for step in range(begin, path.steps):
        time, length = path.grid[step], path.lengths[step]
        slopes: list[Tensor] = []
        for node, row in zip(tableau.nodes, tableau.coupling, strict=True):
            stage = state
            for weight, slope in zip(row, slopes, strict=False):
                if weight:
                    stage = stage + length * weight * slope
            slopes.append(dynamics(time + node * length, stage.view(initial.shape)).reshape(-1))
        sums = (length * dense) @ torch.stack(slopes)
        polynomials.append(torch.cat((state.unsqueeze(0), sums)))
        state = state + sums.sum(0)
    return polynomials


def _refuse_second_order() -> None:
    """Gradients are enabled inside a backward only when a second one is to follow."""
    if torch.is_grad_enabled():
        raise ArgumentError(
            'Second derivatives (create_graph=True) need gradient="autograd", but this solution was'
            ' made with another; solve with gradient="autograd".'
        )


def _full_precision(path: Path) -> AbstractContextManager[None]:
    """No autocast inside: the solver works in the state's own type."""
    return torch.autocast(path.field.initial.device.type, enabled=False)
