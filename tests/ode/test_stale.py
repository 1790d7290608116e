"""Weights that change after a solve are noticed."""

from __future__ import annotations

import pytest
import torch

import floater
from floater import LinearDynamics, MLPDynamics
from floater.errors import (
    StaleTrajectoryError,
)
from floater.ode import Gradient

STALE = (
    r"A parameter of the dynamics was changed in place after the trajectory was solved; solve again"
)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_weights_changed_between_forward_and_backward(gradient: Gradient) -> None:
    dynamics = LinearDynamics(3)
    states = floater.solve(dynamics, torch.ones(3), torch.tensor([1.0]), gradient=gradient)
    with torch.no_grad():
        dynamics.linear.weight.mul_(2)
    with pytest.raises(StaleTrajectoryError, match=STALE):
        states.sum().backward()


def test_weights_of_an_mlp_changed_before_the_adjoint() -> None:
    """The adjoint calls the dynamics again, however the states were computed."""
    dynamics = MLPDynamics(3)
    states = floater.solve(dynamics, torch.ones(3), torch.tensor([1.0]), gradient="adjoint")
    with torch.no_grad():
        dynamics.first.weight.mul_(2)
    with pytest.raises(StaleTrajectoryError, match=STALE):
        states.sum().backward()


def test_weights_of_an_mlp_changed_before_the_discrete_gradient() -> None:
    """The fast path holds its own copy of the weights: the gradient is that of the solve."""
    dynamics, p = MLPDynamics(3), torch.ones(3)
    (expected,) = torch.autograd.grad(
        floater.solve(dynamics, p, torch.tensor([1.0])).sum(),
        [dynamics.first.weight],
        retain_graph=True,
    )
    states = floater.solve(dynamics, p, torch.tensor([1.0]))
    with torch.no_grad():
        dynamics.first.weight.mul_(2)
    assert torch.equal(torch.autograd.grad(states.sum(), [dynamics.first.weight])[0], expected)


def test_weights_changed_before_a_trajectory_is_called_again() -> None:
    dynamics = LinearDynamics(3)
    path = floater.trajectory(dynamics, torch.ones(3), 1.0)
    with torch.no_grad():
        dynamics.linear.weight.mul_(2)
    with pytest.raises(StaleTrajectoryError, match=STALE):
        path(torch.tensor([0.5]))
