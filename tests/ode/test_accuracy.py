"""States and gradients of the default solver against fine float64 references, exact solutions and
torchdiffeq.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchdiffeq import odeint

import floater
from floater import RK4, Dopri5, LinearDynamics, MLPDynamics, SinusoidDynamics, ZeroDynamics

from .systems import Damped, pull, relative_error


def largest_error(states: Tensor, reference: Tensor) -> float:
    """Largest error of any number, relative to the largest number."""
    reference = reference.detach()
    return float((states.detach() - reference).abs().max() / reference.abs().max())


def xavier(dim: int) -> MLPDynamics:
    dynamics = MLPDynamics(dim, activation="tanh")
    for parameter in dynamics.parameters():
        if parameter.ndim == 2:
            nn.init.xavier_normal_(parameter, gain=0.5)
    return dynamics


@pytest.mark.slow
def test_default_solver_meets_its_accuracy_at_the_size_of_a_transformer_base(
    record_property: Callable[[str, object], None],
) -> None:
    """Item 2 of issue 2, for p(start) drawn at random and for p(start) = 0."""
    dynamics = xavier(512)
    exact = copy.deepcopy(dynamics).double()
    times = 0.1 * torch.arange(256, dtype=torch.float64)
    begins = {"random": torch.randn(18, 512), "zero": torch.zeros(18, 512)}
    with (
        torch.no_grad()
    ):  # a fixed step does not mix trajectories, so one solve serves all; one zero stands for 18
        distinct = torch.cat((begins["random"], torch.zeros(1, 512))).double()
        fine = floater.solve(exact, distinct, times, solver=RK4(0.1 / 20))
    for (name, begin), reference in zip(begins.items(), fine.split((18, 1), 1), strict=True):
        p = begin.clone().requires_grad_()
        states = floater.solve(dynamics, p, times)
        error = largest_error(states, reference)
        record_property(f"state_error_{name}", error)
        assert error < 1e-4, name
        p64 = begin.double().requires_grad_()
        # RK4(Δ) in float64 is far finer than the bound on gradients, as its states show.
        coarse = floater.solve(exact, p64, times, solver=RK4(0.1))
        assert largest_error(coarse, reference) < 1e-7
        computed = pull(states, [p, *dynamics.parameters()])
        expected = pull(coarse, [p64, *exact.parameters()])
        worst = max(relative_error(a, b) for a, b in zip(computed, expected, strict=True))
        record_property(f"gradient_error_{name}", worst)
        assert worst < 1e-3, name


@pytest.mark.parametrize("begin", ["random", "zero"])
def test_gradient_is_accurate_where_the_state_stands_still(begin: str) -> None:
    """With a zero last layer h ≡ 0, so nothing in p tells how long a step may be; the last layer's
    gradient does.
    """
    dynamics = MLPDynamics(64, zero_init=True)
    exact = copy.deepcopy(dynamics).double()
    times = 0.1 * torch.arange(1, 257, dtype=torch.float64)
    p = torch.randn(6, 64) if begin == "random" else torch.zeros(6, 64)
    states, reference = (
        floater.solve(dynamics, p, times),
        floater.solve(exact, p.double(), times, solver=RK4(0.1 / 4)),
    )
    assert torch.equal(states, p.expand_as(states))
    computed = pull(states, [dynamics.second.weight, dynamics.second.bias])
    expected = pull(reference, [exact.second.weight, exact.second.bias])
    assert all(relative_error(a, b) < 1e-3 for a, b in zip(computed, expected, strict=True))


@pytest.mark.parametrize("make", [MLPDynamics, Damped, LinearDynamics])
def test_agrees_with_torchdiffeq(make: type[MLPDynamics]) -> None:
    dynamics = make(8).double()
    p = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    times = torch.tensor([0.0, 0.3, 0.3001, 1.0, 2.5, 5.0], dtype=torch.float64)
    ours = floater.solve(dynamics, p, times, solver=Dopri5(rtol=1e-10, atol=1e-12))
    theirs: Tensor = odeint(dynamics, p, times, rtol=1e-10, atol=1e-12, method="dopri5")
    assert relative_error(ours, theirs) < 1e-7
    inputs = [p, *dynamics.parameters()]
    for computed, expected in zip(pull(ours, inputs), pull(theirs, inputs), strict=True):
        assert relative_error(computed, expected) < 1e-6


@pytest.mark.slow
def test_sinusoid_dynamics_give_the_sinusoidal_encoding_over_10_000_positions() -> None:
    dim = 16
    dynamics = SinusoidDynamics(dim).double()
    positions = torch.arange(10_000, dtype=torch.float64)
    solver = Dopri5(rtol=1e-7, atol=1e-7)
    states = floater.solve(dynamics, dynamics.initial().double(), positions, solver=solver)
    angle = positions[:, None] * 1e-4 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    assert float((states[:, 0::2] - torch.sin(angle)).abs().max()) < 1e-5
    assert float((states[:, 1::2] - torch.cos(angle)).abs().max()) < 1e-5


def test_linear_dynamics_have_their_closed_form() -> None:
    dynamics = LinearDynamics(5).double()
    nn.init.normal_(dynamics.linear.bias)
    p = torch.randn(2, 5, dtype=torch.float64)
    times = torch.linspace(0.0, 4.0, 9, dtype=torch.float64)
    states = floater.solve(dynamics, p, times, solver=Dopri5(rtol=1e-10, atol=1e-12))
    # p and a constant 1 together obey homogeneous dynamics: [A b; 0 0].
    generator = torch.zeros(6, 6, dtype=torch.float64)
    generator[:5, :5], generator[:5, 5] = (
        dynamics.linear.weight.detach(),
        dynamics.linear.bias.detach(),
    )
    flow = torch.linalg.matrix_exp(times.view(-1, 1, 1) * generator)
    expected = torch.cat((p, torch.ones(2, 1, dtype=torch.float64)), 1) @ flow.transpose(1, 2)
    torch.testing.assert_close(states.detach(), expected[..., :5], rtol=1e-8, atol=1e-9)


def test_zero_dynamics_stand_still() -> None:
    p = torch.randn(2, 3)
    states = floater.solve(ZeroDynamics(3), p, torch.tensor([0.0, 1.0, 1e6]))
    assert torch.equal(states, p.expand(3, 2, 3))


def test_start_only_shifts_the_time() -> None:
    """Autonomous dynamics give the same states at any start."""
    dynamics = LinearDynamics(4).double()
    p = torch.randn(4, dtype=torch.float64)
    times = torch.linspace(0, 3, 7, dtype=torch.float64)
    moved = floater.solve(dynamics, p, times - 5, start=-5.0)
    torch.testing.assert_close(moved, floater.solve(dynamics, p, times), rtol=1e-12, atol=1e-12)


def test_a_law_that_sees_the_time_sees_the_start() -> None:
    p = torch.zeros(1, dtype=torch.float64)
    times = torch.tensor([2.0, 3.0, 5.5], dtype=torch.float64)
    states = floater.solve(lambda t, p: torch.full_like(p, 2 * t), p, times, start=2.0)
    torch.testing.assert_close(states[:, 0], times**2 - 4, rtol=1e-12, atol=1e-12)
