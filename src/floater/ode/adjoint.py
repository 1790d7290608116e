"""The gradient "adjoint": the paper's Appendix A, a second ODE solved backwards in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .callable_field import CallableField
from .gradient_method import GradientMethod, apply, full_precision, refuse_second_order
from .output import OutputRequest, evaluate
from .stepper import Stepper


class AdjointGradient(GradientMethod):
    """The continuous adjoint: stores nothing but the outputs."""

    calls_dynamics = True

    def states(self, request: OutputRequest) -> Tensor:
        initial = self._problem.initial.reshape(-1)
        called = self._problem.called
        arguments = (self._stepper, called, request, request.times, initial, *called.inputs)
        return apply(_Adjoint, *arguments)


class _Adjoint(torch.autograd.Function):
    """The adjoint jumps by the incoming cotangent at every output time."""

    @staticmethod
    def forward(
        ctx: Any,
        stepper: Stepper,
        dynamics: CallableField,
        request: OutputRequest,
        times: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        with full_precision(stepper):
            out = evaluate(stepper, request)
        ctx.stepper, ctx.dynamics, ctx.request = stepper, dynamics, request
        ctx.inputs = inputs[1:]
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        (out,) = ctx.saved_tensors
        ctx.dynamics.check_unchanged()
        request: OutputRequest = ctx.request
        with full_precision(ctx.stepper):
            if request.order is not None:
                rows = torch.from_numpy(request.order).to(out.device)
                out, gradient = out[rows], gradient[rows]
            system = _AdjointSystem(ctx.stepper, ctx.dynamics, ctx.inputs)
            grad_initial, grad_inputs, grad_times = system.solve(request.ascending, out, gradient)
            if request.order is not None:
                grad_times = torch.empty_like(grad_times).index_copy_(0, rows, grad_times)
        times = request.times
        grad_times = grad_times.to(times.device, times.dtype).view(times.shape)
        return (None, None, None, grad_times, grad_initial, *grad_inputs)


class _AdjointSystem:
    """The augmented system (p, a, dL/dθ) in reversed time s = -t."""

    def __init__(
        self, stepper: Stepper, dynamics: CallableField, inputs: tuple[Tensor, ...]
    ) -> None:
        self._stepper, self._dynamics, self._inputs = stepper, dynamics, inputs
        self._size = stepper.field.initial.numel()

    def __call__(self, reversed_time: float, augmented: Tensor) -> Tensor:
        state, adjoint = augmented[: self._size], augmented[self._size : 2 * self._size]
        with torch.enable_grad():
            state = state.detach().requires_grad_()
            slope = self._dynamics(-reversed_time, state)
        tensors = (state, *self._inputs)
        if slope.requires_grad:
            products = torch.autograd.grad(
                slope,
                tensors,
                adjoint,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        else:
            products = tuple(torch.zeros_like(tensor) for tensor in tensors)
        return torch.cat((-slope.detach(), *[product.reshape(-1) for product in products]))

    def solve(
        self, times: NDArray[np.float64], out: Tensor, gradient: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Return the gradients of p(start), of the inputs and of the times."""
        size = self._size
        weights = sum(tensor.numel() for tensor in self._inputs)
        tail = out.new_zeros(size + weights)  # adjoint, then dL/dθ
        grad_times = out.new_zeros(len(times))
        first_step: float | None = None
        for i in reversed(range(len(times))):
            state, time = out[i], float(times[i])
            grad_times[i] = torch.dot(gradient[i], self._dynamics(time, state).detach())
            tail[:size] += gradient[i]
            begin = float(times[i - 1]) if i else self._stepper.start
            if begin < time:
                augmented = torch.cat((state, tail))
                tail, first_step = self._backwards(time, begin, augmented, first_step)
        flat = torch.split(tail[size:], [tensor.numel() for tensor in self._inputs])
        grads = tuple(
            grad.view(tensor.shape) for grad, tensor in zip(flat, self._inputs, strict=True)
        )
        return tail[:size].clone(), grads, grad_times

    def _backwards(
        self, begin: float, end: float, augmented: Tensor, first_step: float | None
    ) -> tuple[Tensor, float | None]:
        """Solve from `begin` back to `end`; also return the length of the step to continue with."""
        stepper = Stepper(
            CallableField(self, augmented, -begin, inputs=()),
            self._stepper.solver,
            -begin,
            keep_stages=False,
            keep_dense=False,
            first_step=first_step,
        )
        stepper.advance(-end, clip=True)
        return stepper.state[self._size :].clone(), stepper.rule.proposal
