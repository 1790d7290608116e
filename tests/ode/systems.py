"""Dynamics and small helpers that several test files share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from floater import RK4, Dopri5, Euler, Midpoint, MLPDynamics
from floater.ode import Solver

ONE = torch.ones(1)
ACTIVATION_NAMES = ("tanh", "relu", "silu", "gelu", "softplus")


def square(t: float, p: Tensor) -> Tensor:
    """p(t) = 1 / (1 - t) from p(0) = 1."""
    return p * p


def growth(t: float, p: Tensor) -> Tensor:
    return p


def fixed_dopri5(step: float) -> Dopri5:
    """Dormand-Prince with a tolerance that accepts everything, so that every step has the same
    length.
    """
    return Dopri5(rtol=1e9, atol=1e9, max_step=step)


def fixed_solvers(step: float) -> tuple[Solver, ...]:
    """All four methods, none of them adapting its step to the data."""
    return fixed_dopri5(step), RK4(step), Midpoint(step), Euler(step)


class Damped(MLPDynamics):
    """An MLP whose subclass changes h, which rules out the fast implementation."""

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        return super().forward(t, p) - 0.1 * p


class Counted(nn.Module):
    """Counts the calls of the module inside."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.calls = inside, 0

    def forward(self, t: float, p: Tensor) -> Tensor:
        self.calls += 1
        slope: Tensor = self.inside(t, p)
        return slope


def use_weights(module: nn.Module, tensors: Sequence[Tensor]) -> None:
    """Make `tensors` the module's parameters, keeping the graph that they belong to."""
    for (name, _), tensor in zip(list(module.named_parameters()), tensors, strict=True):
        owner, _, leaf = name.rpartition(".")
        module.get_submodule(owner)._parameters[leaf] = cast(nn.Parameter, tensor)


def weights_of(module: nn.Module) -> list[Tensor]:
    """Copies of the parameters that require gradients."""
    return [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]


def relative_error(value: Tensor, reference: Tensor) -> float:
    """‖value - reference‖ / ‖reference‖, in float64."""
    value, reference = value.detach().double(), reference.detach().double()
    return float((value - reference).norm() / reference.norm())


def pull(states: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a fixed random weighting of `states`, the same for every call with the same
    shape.
    """
    generator = torch.Generator().manual_seed(7)
    cotangent = torch.randn(states.shape, generator=generator, dtype=torch.float64).to(states.dtype)
    return torch.autograd.grad((states * cotangent).sum(), list(inputs))
