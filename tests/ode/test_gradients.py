"""Three gradients against finite differences and against each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import floater
from floater import RK4, Dopri5, LinearDynamics, Midpoint, MLPDynamics
from floater.dynamics import ActivationName
from floater.ode import Gradient, Solver

from .systems import (
    ACTIVATION_NAMES,
    Damped,
    fixed_dopri5,
    fixed_solvers,
    pull,
    relative_error,
    use_weights,
    weights_of,
)

SOLVERS = fixed_solvers(0.3)
TIMES = torch.tensor([0.0, 0.11, 0.5, 0.5, 0.83, 1.07], dtype=torch.float64)

each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
each_activation = pytest.mark.parametrize("activation", ACTIVATION_NAMES)
each_horizon = pytest.mark.parametrize("horizon", [None, 3.0])


def biased(dynamics: nn.Module) -> nn.Module:
    """Float64, with biases that are not zero."""
    for name, parameter in dynamics.double().named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return dynamics


def begin(rows: int = 2, dim: int = 2) -> Tensor:
    return torch.randn(rows, dim, dtype=torch.float64, requires_grad=True)


def check(
    dynamics: nn.Module, solver: Solver, gradient: Gradient = "discrete", dim: int = 2
) -> None:
    """Finite differences of the states in p(start), the times and every weight."""

    def states(initial: Tensor, times: Tensor, *weights: Tensor) -> Tensor:
        use_weights(dynamics, weights)
        return floater.solve(dynamics, initial, times, solver=solver, gradient=gradient)

    times = torch.tensor([0.11, 0.5, 0.83, 1.07], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(states, (begin(dim=dim), times, *weights_of(dynamics)))


@each_activation
@each_horizon
def test_gradcheck_of_the_fast_path(activation: ActivationName, horizon: float | None) -> None:
    check(biased(MLPDynamics(2, 3, activation=activation, horizon=horizon)), fixed_dopri5(0.4))


@each_solver
def test_gradcheck_of_the_fast_path_with_each_method(solver: Solver) -> None:
    check(biased(MLPDynamics(2, 3)), solver)


@each_solver
@pytest.mark.parametrize(
    "make", [lambda: LinearDynamics(2), lambda: Damped(2, 3, horizon=3.0)], ids=["linear", "sub"]
)
def test_gradcheck_of_the_generic_path(make: Callable[[], nn.Module], solver: Solver) -> None:
    check(biased(make()), solver)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_gradcheck_of_a_closure_over_leaves(gradient: Gradient) -> None:
    def states(initial: Tensor, times: Tensor, matrix: Tensor, rate: Tensor) -> Tensor:
        def h(t: float, p: Tensor) -> Tensor:
            return torch.sin(p @ matrix) + rate * t

        return floater.solve(h, initial, times, solver=RK4(0.4), gradient=gradient)

    matrix = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    rate = torch.randn(2, dtype=torch.float64, requires_grad=True)
    times = torch.tensor([0.11, 0.83, 1.07], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(states, (begin(), times, matrix, rate))


def test_gradcheck_of_a_closure_over_tensors_with_a_past() -> None:
    """The leaves stand behind tensors that were computed before the solve."""

    def states(initial: Tensor, raw: Tensor) -> Tensor:
        matrix = torch.tanh(raw)
        return floater.solve(lambda t, p: p @ matrix, initial, TIMES, solver=RK4(0.4))

    assert torch.autograd.gradcheck(
        states, (begin(), torch.randn(2, 2, dtype=torch.float64, requires_grad=True))
    )


@each_solver
def test_gradcheck_of_autograd(solver: Solver) -> None:
    check(biased(MLPDynamics(2, 3, horizon=3.0)), solver, "autograd")


@pytest.mark.parametrize(
    "make", [lambda: MLPDynamics(2, 3), lambda: LinearDynamics(2)], ids=["mlp", "linear"]
)
def test_gradcheck_of_the_adjoint(make: Callable[[], nn.Module]) -> None:
    check(biased(make()), Dopri5(rtol=1e-9, atol=1e-11), "adjoint")


@pytest.mark.slow
def test_gradcheck_of_an_adjoint_with_functional_weights() -> None:
    dynamics = biased(MLPDynamics(2, 3))
    names = [name for name, _ in dynamics.named_parameters()]

    def states(initial: Tensor, *weights: Tensor) -> Tensor:
        held = dict(zip(names, weights, strict=True))

        def h(t: float, p: Tensor) -> Tensor:
            slope: Tensor = functional_call(dynamics, held, (t, p))
            return slope

        return floater.solve(
            h, initial, TIMES, solver=Dopri5(rtol=1e-9, atol=1e-11), gradient="adjoint"
        )

    assert torch.autograd.gradcheck(states, (begin(), *weights_of(dynamics)))


def compare(
    dynamics: nn.Module,
    initial: Tensor,
    times: Tensor,
    solver: Solver,
    gradients: tuple[Gradient, Gradient],
) -> list[float]:
    """Relative differences of states and of all gradients between two ways to differentiate."""
    times = times.clone().requires_grad_()
    inputs = [initial, times, *dynamics.parameters()]
    end = float(times.detach().max())
    results = []
    for gradient in gradients:
        states = floater.trajectory(dynamics, initial, end, solver=solver, gradient=gradient)(times)
        results.append((states, *pull(states, inputs)))
    return [relative_error(computed, expected) for computed, expected in zip(*results, strict=True)]


@each_solver
@each_activation
@each_horizon
def test_discrete_is_autograd_on_the_fast_path(
    solver: Solver, activation: ActivationName, horizon: float | None
) -> None:
    dynamics = biased(MLPDynamics(5, 7, activation=activation, horizon=horizon))
    times = torch.tensor([[0.9, 0.1, 0.1], [2.3, 0.0, 1.7]], dtype=torch.float64)
    assert max(compare(dynamics, begin(3, 5), times, solver, ("discrete", "autograd"))) < 1e-10


@each_solver
@pytest.mark.parametrize(
    "make", [lambda: LinearDynamics(5), lambda: Damped(5, 7)], ids=["linear", "subclass"]
)
def test_discrete_is_autograd_on_the_generic_path(
    make: Callable[[], nn.Module], solver: Solver
) -> None:
    times = torch.tensor([[0.9, 0.1, 0.1], [2.3, 0.0, 1.7]], dtype=torch.float64)
    assert (
        max(compare(biased(make()), begin(3, 5), times, solver, ("discrete", "autograd"))) < 1e-10
    )


@pytest.mark.parametrize(
    "make", [lambda: MLPDynamics(5, 7), lambda: Damped(5, 7)], ids=["fast", "generic"]
)
def test_discrete_is_autograd_with_steps_chosen_by_the_tolerance(
    make: Callable[[], nn.Module],
) -> None:
    times = torch.linspace(0, 12, 40, dtype=torch.float64)
    assert (
        max(compare(biased(make()), begin(3, 5), times, Dopri5(), ("discrete", "autograd"))) < 1e-10
    )


@pytest.mark.parametrize(
    "make", [lambda: MLPDynamics(4, 6), lambda: LinearDynamics(4)], ids=["fast", "generic"]
)
@pytest.mark.parametrize("steps", [63, 64, 65, 128, 200])
def test_discrete_is_autograd_over_several_blocks_of_steps(
    make: Callable[[], nn.Module], steps: int
) -> None:
    dynamics, initial = biased(make()), begin(2, 4)
    solver = Midpoint(1 / 64)
    times = torch.linspace(0, steps / 64, 33, dtype=torch.float64)
    path = floater.trajectory(dynamics, initial, float(times[-1]), solver=solver)
    assert path.steps == steps
    assert path._stepper.tape.steps_per_block == 64
    assert max(compare(dynamics, initial, times, solver, ("discrete", "autograd"))) < 1e-10


@pytest.mark.parametrize("steps_per_block", [1, 3])
def test_discrete_is_autograd_when_a_block_holds_few_steps(
    steps_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide states leave room for few steps in a block."""
    dynamics, initial = biased(MLPDynamics(4, 6)), begin(2, 4)
    monkeypatch.setattr("floater.ode.rows._BLOCK_BYTES", steps_per_block * 6 * (2 * 6) * 8)
    times = torch.linspace(0, 3, 13, dtype=torch.float64)
    path = floater.trajectory(dynamics, initial, 3.0, solver=fixed_dopri5(0.3))
    assert path._stepper.tape.steps_per_block == steps_per_block
    assert (
        max(compare(dynamics, initial, times, fixed_dopri5(0.3), ("discrete", "autograd"))) < 1e-10
    )


def test_gradient_of_few_times_on_a_long_trajectory() -> None:
    """Steps past the last output take no part in the reverse sweep."""
    dynamics, initial = biased(MLPDynamics(4, 6)), begin(2, 4)
    long = floater.trajectory(dynamics, initial, 20.0)
    times = torch.tensor([0.2, 1.0], dtype=torch.float64)
    inputs = [initial, *dynamics.parameters()]
    computed, expected = (
        pull(long(times), inputs),
        pull(floater.solve(dynamics, initial, times), inputs),
    )
    for a, b in zip(computed, expected, strict=True):
        assert relative_error(a, b) < 1e-13


def test_each_call_of_a_trajectory_has_its_own_gradient() -> None:
    """Two micro-batches over one solve, each with its own backward, add up to one."""
    dynamics, initial = biased(MLPDynamics(4, 6)), begin(2, 4)
    path = floater.trajectory(dynamics, initial, 5.0)
    parts = [
        torch.tensor([0.5, 3.0], dtype=torch.float64),
        torch.tensor([1.0, 8.0], dtype=torch.float64),
    ]
    for part in parts:
        path(part).square().sum().backward()
    added = [
        tensor.grad.clone()
        for tensor in (initial, *dynamics.parameters())
        if tensor.grad is not None
    ]
    whole = path(torch.cat(parts)).square().sum()
    expected = torch.autograd.grad(whole, [initial, *dynamics.parameters()])
    for a, b in zip(added, expected, strict=True):
        assert relative_error(a, b) < 1e-12


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_frozen_weights_receive_no_gradient_and_change_no_other(gradient: Gradient) -> None:
    dynamics, initial = biased(MLPDynamics(4, 6)), begin(2, 4)
    open_weights = [
        parameter for name, parameter in dynamics.named_parameters() if name != "first.weight"
    ]
    solver = Dopri5(rtol=1e-9, atol=1e-11)

    def gradients() -> tuple[Tensor, ...]:
        return pull(
            floater.solve(dynamics, initial, TIMES, solver=solver, gradient=gradient), open_weights
        )

    expected = gradients()
    dynamics.get_parameter("first.weight").requires_grad_(False)
    # The adjoint's steps depend on all it integrates, so that there the tolerance is what remains.
    allowed = 1e-7 if gradient == "adjoint" else 1e-12
    for a, b in zip(gradients(), expected, strict=True):
        assert relative_error(a, b) < allowed
    floater.solve(dynamics, initial, TIMES, solver=solver, gradient=gradient).sum().backward()
    assert dynamics.get_parameter("first.weight").grad is None


@pytest.mark.parametrize(
    "make", [lambda: MLPDynamics(4, 6), lambda: LinearDynamics(4)], ids=["mlp", "linear"]
)
def test_adjoint_tends_to_discrete_as_the_tolerance_shrinks(make: Callable[[], nn.Module]) -> None:
    dynamics, initial = biased(make()), begin(3, 4)
    times = torch.tensor([2.2, 0.4, 1.0, 1.0, 3.0], dtype=torch.float64)
    worst = []
    for rtol in (1e-4, 1e-6, 1e-8):
        solver = Dopri5(rtol=rtol, atol=rtol / 10)
        worst.append(max(compare(dynamics, initial, times, solver, ("adjoint", "discrete"))))
    assert worst[0] > worst[1] > worst[2]
    assert worst[-1] < 1e-6


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_gradient_in_the_time_is_the_slope(gradient: Gradient) -> None:
    dynamics = biased(MLPDynamics(3))
    times = torch.tensor([2.0, 0.3, 1.1], dtype=torch.float64, requires_grad=True)
    initial = begin(1, 3)
    path = floater.trajectory(
        dynamics, initial, 2.0, solver=Dopri5(rtol=1e-10, atol=1e-12), gradient=gradient
    )
    states = path(times)
    (computed,) = torch.autograd.grad(states.sum(), times)
    slopes = torch.stack(
        [dynamics(t, state) for t, state in zip(times.tolist(), states, strict=True)]
    )
    torch.testing.assert_close(computed, slopes.detach().sum((1, 2)), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_gradient_in_the_time_at_the_start_needs_no_other_time(gradient: Gradient) -> None:
    """p(t) moves away from the start with slope h(start, p), whatever else is requested."""
    initial = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    times = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    states = floater.solve(lambda t, p: 3 * p, initial, times, gradient=gradient)
    (computed,) = torch.autograd.grad(states.sum(), times)
    assert float(computed) == pytest.approx(6.0)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_gradient_at_the_start_alone_is_the_identity(gradient: Gradient) -> None:
    dynamics, initial = biased(MLPDynamics(3)), begin(2, 3)
    times = torch.zeros(4, dtype=torch.float64)
    states = floater.solve(dynamics, initial, times, gradient=gradient)
    assert torch.equal(states, initial.expand(4, 2, 3))
    (computed,) = torch.autograd.grad(states.sum(), initial)
    assert torch.equal(computed, torch.full_like(initial, 4.0))


def test_no_times_at_all() -> None:
    dynamics, initial = biased(MLPDynamics(3)), begin(2, 3)
    states = floater.solve(dynamics, initial, torch.empty(0))
    assert states.shape == (0, 2, 3)
    assert torch.equal(torch.autograd.grad(states.sum(), initial)[0], torch.zeros_like(initial))


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_a_law_that_switches_reaches_both_its_parts(gradient: Gradient) -> None:
    """The first evaluation shows only one of the leaves."""
    early, late = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    initial = torch.ones(1, dtype=torch.float64)
    solver = RK4(0.25)
    states = floater.solve(
        lambda t, p: (early if t < 1 else late) * p,
        initial,
        torch.tensor([2.0]),
        solver=solver,
        gradient=gradient,
    )
    states.sum().backward()
    assert early.grad is not None
    assert late.grad is not None
    assert float(late.grad) == pytest.approx(states.item(), rel=0.1)


def test_gradients_reach_dynamics_called_through_a_bound_method() -> None:
    dynamics, initial = biased(LinearDynamics(3)), begin(2, 3)
    inputs = [initial, *dynamics.parameters()]
    computed = pull(floater.solve(dynamics.forward, initial, TIMES), inputs)
    expected = pull(floater.solve(dynamics, initial, TIMES), inputs)
    assert all(torch.equal(a, b) for a, b in zip(computed, expected, strict=True))


def test_a_trajectory_solved_without_gradients_does_not_pretend_to_have_them() -> None:
    dynamics = MLPDynamics(3).double()
    with torch.no_grad():
        path = floater.trajectory(dynamics, begin(2, 3).detach(), 20.0)
    assert not path.differentiable
    with pytest.raises(floater.FloaterError):
        path(torch.linspace(0, 20, 5)).sum().backward()
