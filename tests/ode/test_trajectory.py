"""The bits of p(t) do not depend on the other times requested, nor on when they are requested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import floater
from floater import RK4, Dopri5, Euler, LinearDynamics, Midpoint, MLPDynamics, SinusoidDynamics
from floater.ode import Gradient, Solver

from .systems import Counted, Damped

SOLVERS: tuple[Solver, ...] = (Dopri5(), RK4(0.2), Midpoint(0.1), Euler(0.07))
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "fast": lambda: MLPDynamics(6, 9),
    "linear": lambda: LinearDynamics(6),
    "subclass": lambda: Damped(6, 9, activation="relu", horizon=4.0),
    "closure": lambda: SinusoidDynamics(6),
}

each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)


def irregular(count: int = 41, end: float = 9.0) -> Tensor:
    """Sorted times with repeats and one that is the start."""
    times = torch.rand(count, dtype=torch.float64).mul_(end).sort().values
    times[0], times[7] = 0.0, times[6]
    return times


@each_solver
@each_maker
@each_dtype
def test_prefix(solver: Solver, make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    dynamics, p = make().to(dtype), torch.randn(3, 6, dtype=dtype)
    times = irregular()
    whole = floater.solve(dynamics, p, times, solver=solver)
    for k in (1, 2, 7, 8, 23, 40):
        assert torch.equal(floater.solve(dynamics, p, times[:k], solver=solver), whole[:k])


@pytest.mark.slow
@given(
    times=st.lists(st.floats(0, 12, allow_subnormal=False), min_size=1, max_size=20).map(sorted),
    k=st.integers(0, 20),
    solver=st.sampled_from(SOLVERS),
    path=st.sampled_from(["fast", "linear"]),
)
@settings(max_examples=40, deadline=None)
def test_prefix_of_any_times(times: list[float], k: int, solver: Solver, path: str) -> None:
    torch.manual_seed(1)
    dynamics, p = MAKERS[path](), torch.randn(2, 6)
    asked = torch.tensor(times, dtype=torch.float64)
    whole = floater.solve(dynamics, p, asked, solver=solver)
    assert torch.equal(floater.solve(dynamics, p, asked[:k], solver=solver), whole[:k])


@each_dtype
@pytest.mark.parametrize("count", [1, 5, 700])
def test_prefix_of_a_wide_state(dtype: torch.dtype, count: int) -> None:
    """More numbers than one thread takes, so that rows are split between threads and vector
    lanes.
    """
    dynamics, p = MLPDynamics(67, horizon=2.0).to(dtype), torch.randn(3, 67, dtype=dtype)
    times = 0.01 * torch.arange(1000, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(
            floater.solve(dynamics, p, times[:count]), floater.solve(dynamics, p, times)[:count]
        )


@each_solver
@each_maker
@each_dtype
def test_a_time_alone_is_the_time_among_many(
    solver: Solver, make: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    dynamics, p = make().to(dtype), torch.randn(3, 6, dtype=dtype)
    times = irregular(9, end=4.0)
    whole = floater.solve(dynamics, p, times, solver=solver)
    path = floater.trajectory(dynamics, p, 4.0, solver=solver)
    for i, time in enumerate(times):
        assert torch.equal(path(time), whole[i])
        assert torch.equal(floater.solve(dynamics, p, time.reshape(1), solver=solver)[0], whole[i])


@each_solver
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_times_of_any_shape_and_order(solver: Solver, gradient: Gradient) -> None:
    dynamics, p = MLPDynamics(6), torch.randn(3, 6)
    times = irregular(24)
    path = floater.trajectory(dynamics, p, 3.0, solver=solver, gradient=gradient)
    whole = floater.solve(dynamics, p, times, solver=solver, gradient=gradient)
    shuffle = torch.randperm(24)
    computed = path(times[shuffle].view(2, 3, 4))
    assert computed.shape == (2, 3, 4, 3, 6)
    assert torch.equal(computed.reshape(24, 3, 6), whole[shuffle])
    assert path(times[:0].view(0, 5)).shape == (0, 5, 3, 6)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 3, 6)])
def test_initial_states_of_any_shape(shape: tuple[int, ...]) -> None:
    p = torch.randn(shape, dtype=torch.float64)
    dynamics = MLPDynamics(6).double()
    states = floater.solve(dynamics, p, torch.tensor([0.5, 1.0]), solver=RK4(0.1))
    assert states.shape == (2, *shape)
    flat = floater.solve(dynamics, p.reshape(-1, 6), torch.tensor([0.5, 1.0]), solver=RK4(0.1))
    torch.testing.assert_close(states, flat.view(2, *shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float16])
def test_times_of_any_type(dtype: torch.dtype) -> None:
    dynamics, p = MLPDynamics(6), torch.randn(6)
    expected = floater.solve(dynamics, p, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    assert torch.equal(floater.solve(dynamics, p, torch.tensor([0, 1, 2], dtype=dtype)), expected)


@each_solver
@pytest.mark.parametrize("make", [MAKERS["fast"], MAKERS["subclass"]], ids=["fast", "subclass"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_going_on_gives_the_same_bits_and_evaluates_only_the_new_part(
    solver: Solver, make: Callable[[], nn.Module], grad: bool
) -> None:
    dynamics = make()
    p = torch.randn(3, 6, requires_grad=True)
    positions = 0.1 * torch.arange(200, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        at_once = floater.trajectory(dynamics, p, float(positions[-1]), solver=solver)
        expected = at_once(positions)
        grown = floater.trajectory(dynamics, p, float(positions[99]), solver=solver)
        before = grown.evaluations
        first = grown(positions[:100])
        assert grown.evaluations == before
        computed = grown(positions)
        assert grown.evaluations == at_once.evaluations > before
        assert grown.grid == at_once.grid
        assert torch.equal(first, expected[:100])
        assert torch.equal(computed, expected)
        again = grown(positions)
        assert grown.evaluations == at_once.evaluations
        assert torch.equal(again, expected)
        assert torch.equal(floater.solve(dynamics, p, positions, solver=solver), expected)


def test_gradients_of_a_grown_trajectory_are_those_of_one_solve() -> None:
    dynamics, p = (
        MLPDynamics(6).double(),
        torch.randn(3, 6, dtype=torch.float64, requires_grad=True),
    )
    positions = 0.1 * torch.arange(200, dtype=torch.float64)
    grown = floater.trajectory(dynamics, p, 9.9)
    early, late = (
        grown(positions[:100]),
        grown(positions),
    )  # the second call extends what the first one rests on
    inputs = [p, *dynamics.parameters()]
    for states, times in ((early, positions[:100]), (late, positions)):
        computed = torch.autograd.grad(states.square().sum(), inputs)
        expected = torch.autograd.grad(floater.solve(dynamics, p, times).square().sum(), inputs)
        assert all(torch.equal(a, b) for a, b in zip(computed, expected, strict=True))


@each_solver
def test_evaluations_do_not_depend_on_how_many_times_are_requested(solver: Solver) -> None:
    p = torch.randn(3, 6)
    counts = []
    for positions in (1, 10, 10_000):
        dynamics = Counted(LinearDynamics(6))
        use = torch.linspace(0, 5, positions + 1, dtype=torch.float64)[1:]
        torch.manual_seed(3)
        nn.init.normal_(dynamics.inside.get_parameter("linear.weight"), std=0.3)
        floater.solve(dynamics, p, use, solver=solver)
        counts.append(dynamics.calls)
    assert counts[0] == counts[1] == counts[2]


@each_solver
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_evaluations_counts_the_calls(solver: Solver, grad: bool) -> None:
    dynamics = Counted(Damped(6))
    with torch.set_grad_enabled(grad):
        path = floater.trajectory(dynamics, torch.randn(3, 6), 4.0, solver=solver)
        assert path.evaluations == dynamics.calls > path.steps
        path(torch.linspace(0, 12, 50))
    assert path.evaluations == dynamics.calls


def test_evaluations_counts_the_calls_of_a_function() -> None:
    calls = 0

    def h(t: float, p: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.sin(p)

    path = floater.trajectory(h, torch.randn(3, 6), 4.0)
    assert path.evaluations == calls


def test_a_method_that_reuses_its_last_stage_costs_one_evaluation_less_per_step() -> None:
    p = torch.randn(3, 6)
    for solver, per_step in ((RK4(0.1), 4), (Midpoint(0.1), 2), (Euler(0.1), 1)):
        path = floater.trajectory(MLPDynamics(6), p, 2.0, solver=solver)
        assert path.steps == 20
        assert path.evaluations == 1 + 20 * per_step


def test_fixed_steps_lie_on_their_grid_without_drift() -> None:
    path = floater.trajectory(floater.ZeroDynamics(1), torch.zeros(1), 200.0, solver=Euler(0.1))
    assert path.grid == tuple(0.1 * n for n in range(2001))


def test_trajectory_says_where_it_stands() -> None:
    path = floater.trajectory(MLPDynamics(6), torch.randn(3, 6), 3.0, start=1.0)
    assert path.start == path.grid[0] == 1.0
    assert path.end == path.grid[-1] >= 3.0
    assert path.steps == len(path.grid) - 1
    assert path.differentiable


@each_maker
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_deterministic_and_draws_no_random_numbers(
    make: Callable[[], nn.Module], gradient: Gradient
) -> None:
    dynamics, p = make(), torch.randn(3, 6, requires_grad=True)
    state = torch.get_rng_state()
    results = []
    for _ in range(2):
        states = floater.solve(dynamics, p, torch.arange(15.0), gradient=gradient)
        results.append(
            (states, *torch.autograd.grad(states.square().sum(), [p, *dynamics.parameters()]))
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_is_neither_changed_nor_shared() -> None:
    p = torch.randn(3, 6)
    kept = p.clone()
    states = floater.solve(MLPDynamics(6), p, torch.tensor([0.0, 1.0]))
    states.detach().zero_()
    assert torch.equal(p, kept)


def test_a_solved_trajectory_of_an_mlp_keeps_the_weights_it_was_solved_with() -> None:
    dynamics, p = MLPDynamics(6), torch.randn(3, 6)
    times = torch.linspace(0, 9, 10)
    path = floater.trajectory(dynamics, p, 4.0)
    expected = floater.solve(dynamics, p, times)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.add_(1.0)
    assert torch.equal(path(times), expected)
