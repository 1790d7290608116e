"""The solver stops with an error that says where, why and what to do."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater import RK4, Dopri5, Euler, Midpoint, MLPDynamics
from floater.errors import (
    ArgumentError,
    FloaterError,
    SolverError,
    StaleTrajectoryError,
    StateOverflow,
    StepSizeUnderflow,
    TimesError,
    TooManySteps,
)
from floater.ode import step_rules

from .systems import ONE, growth, square


def test_family() -> None:
    for kind in (ArgumentError, TimesError, SolverError, StaleTrajectoryError):
        assert issubclass(kind, FloaterError)
    for kind in (StateOverflow, StepSizeUnderflow, TooManySteps):
        assert issubclass(kind, SolverError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(SolverError, RuntimeError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_blow_up_stops_dopri5(dtype: torch.dtype) -> None:
    with pytest.raises(
        StateOverflow,
        match=(
            r"Solver dopri5 stopped at time 1\.?\d* \(largest \|p\| there: .*\): .*; lower the"
            r" weights"
        ),
    ) as caught:
        floater.solve(square, ONE.to(dtype), torch.tensor([0.5, 2.0]))
    assert caught.value.time == pytest.approx(1.0, abs=1e-3)
    assert caught.value.magnitude > 1e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_blow_up_stops_rk4(dtype: torch.dtype) -> None:
    with pytest.raises(
        StateOverflow,
        match=(
            r"Solver rk4 stopped at time .*: the state overflows in the next step; lower the"
            r" weights"
        ),
    ) as caught:
        floater.solve(square, ONE.to(dtype), torch.tensor([0.5, 2.0]), solver=RK4(0.1))
    assert 0.9 < caught.value.time < 1.5
    assert caught.value.magnitude > 10


@pytest.mark.parametrize(
    "solver", [Dopri5(), RK4(0.1), Midpoint(0.1), Euler(0.1)], ids=lambda s: type(s).__name__
)
def test_before_a_blow_up_all_is_well(solver: floater.ode.Solver) -> None:
    states = floater.solve(square, ONE.double(), torch.tensor([0.5]), solver=solver)
    assert float(states) == pytest.approx(2.0, rel=0.15)


def test_a_trajectory_survives_a_blow_up() -> None:
    path = floater.trajectory(square, ONE.double(), 0.5)
    before = path(torch.tensor([0.2, 0.5]))
    for _ in range(2):
        with pytest.raises(SolverError):
            path(torch.tensor([2.0]))
    assert torch.equal(path(torch.tensor([0.2, 0.5])), before)


@pytest.mark.parametrize("solver", [Dopri5(), RK4(0.5), Euler(0.5)], ids=lambda s: type(s).__name__)
def test_steady_growth_past_the_largest_number(solver: floater.ode.Solver) -> None:
    """The slope stays finite and exact, only the state overflows."""
    begin = torch.full((1,), 3e38)
    with pytest.raises(StateOverflow, match="stopped at time"):
        floater.solve(
            lambda t, p: torch.full_like(p, 1e37), begin, torch.tensor([1.0, 30.0]), solver=solver
        )


@pytest.mark.parametrize("solver", [Dopri5(), RK4(0.5), Euler(0.5)], ids=lambda s: type(s).__name__)
def test_dynamics_that_are_nan_from_the_start(solver: floater.ode.Solver) -> None:
    with pytest.raises(
        StateOverflow, match="the dynamics are not finite at the very first time"
    ) as caught:
        floater.solve(lambda t, p: p * math.nan, 3 * ONE, torch.tensor([1.0]), solver=solver)
    assert caught.value.time == 0
    assert caught.value.magnitude == 3


@pytest.mark.parametrize("solver", [Dopri5(), RK4(0.5), Euler(0.5)], ids=lambda s: type(s).__name__)
def test_dynamics_that_become_nan(solver: floater.ode.Solver) -> None:
    with pytest.raises(StateOverflow, match="stopped at time") as caught:
        floater.solve(
            lambda t, p: p * (1.0 if t < 3 else math.nan), ONE, torch.tensor([5.0]), solver=solver
        )
    assert 2 <= caught.value.time <= 3
    assert caught.value.magnitude == pytest.approx(math.exp(caught.value.time), rel=0.5)


def test_mlp_that_overflows() -> None:
    dynamics = MLPDynamics(4, activation="relu")
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.fill_(30.0)
    with pytest.raises(SolverError, match="give it a bounded view of time"):
        floater.solve(dynamics, torch.ones(4), torch.tensor([10.0]))


def test_step_size_underflow_at_a_jump_no_step_can_resolve() -> None:
    with pytest.raises(
        StepSizeUnderflow,
        match=(
            r"stopped at time 1 \(largest \|p\| there: 1\): no step meets rtol=0\.0001,"
            r" atol=1e-05; "
        ),
    ) as caught:
        floater.solve(
            lambda t, p: torch.full_like(p, 0.0 if t < 1 else 1e13),
            ONE.double(),
            torch.tensor([2.0], dtype=torch.float64),
        )
    assert caught.value.time == pytest.approx(1.0)
    assert caught.value.magnitude == 1.0


def test_step_size_underflow_of_a_tolerance_too_fine_for_float32() -> None:
    h, begin = floater.MLPDynamics(16), torch.randn(3, 16)
    with pytest.raises(
        StepSizeUnderflow, match=r"loosen rtol/atol or solve in float64 \(rtol=1e-12 is too fine"
    ):
        floater.solve(h, begin, torch.tensor([2.0]), solver=Dopri5(rtol=1e-12, atol=1e-12))


@pytest.mark.parametrize("rtol", [1e-300, 1e-25])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_tolerance_that_no_number_resolves_is_refused_at_once(
    rtol: float, dtype: torch.dtype
) -> None:
    h = lambda t, p: torch.sin(p)  # noqa: E731
    calls: tuple[tuple[Any, Any], ...] = (
        (floater.solve, torch.tensor([2.0])),
        (floater.trajectory, 2.0),
    )
    for call, end in calls:
        with pytest.raises(
            ArgumentError,
            match=rf"`rtol` of Dopri5 must be at least .* but is {rtol:g}, which is too fine",
        ):
            call(h, ONE.to(dtype), end, solver=Dopri5(rtol=rtol))


@pytest.mark.parametrize("size", [1e20, 1e30, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dynamics_that_are_huge_at_once_are_called_so(size: float, dtype: torch.dtype) -> None:
    dynamics = floater.MLPDynamics(16).to(dtype)
    with torch.no_grad():
        list(dynamics.parameters())[-1].fill_(size)
    with pytest.raises(
        StepSizeUnderflow,
        match=r"the dynamics are too large there \(\|h\| up to 1\.0e\+\d\d\).*lower the weights",
    ):
        floater.solve(dynamics, torch.zeros(2, 16, dtype=dtype), torch.tensor([0.0, 1.0]))


def test_finite_dynamics_whose_sum_overflows_are_not_called_infinite() -> None:
    with pytest.raises(
        StateOverflow, match=r"the dynamics are as large as 1.0e\+38 at the very first time"
    ):
        floater.solve(
            lambda t, p: torch.full_like(p, 1e38), torch.zeros(2, 16), torch.tensor([0.0, 1.0])
        )


@pytest.mark.parametrize("tiny", [1e-80, 1e-300])
def test_a_slope_that_begins_next_to_nothing(tiny: float) -> None:
    times = torch.tensor([1.0, 2.0], dtype=torch.float64)
    states = floater.solve(
        lambda t, p: torch.full_like(p, tiny + t), torch.zeros(1, dtype=torch.float64), times
    )
    torch.testing.assert_close(states[:, 0], times**2 / 2, rtol=1e-10, atol=0)


def test_a_slope_that_begins_huge() -> None:
    times = torch.tensor([1.0, 2.0], dtype=torch.float64)
    states = floater.solve(lambda t, p: torch.full_like(p, 1e30), torch.zeros(1), times)
    torch.testing.assert_close(states[:, 0], (1e30 * times).float(), rtol=1e-5, atol=0)


def test_too_many_adaptive_steps() -> None:
    solver = Dopri5(rtol=1e-8, atol=1e-8, max_steps=20)
    with pytest.raises(
        TooManySteps,
        match=(
            r"20 steps did not reach time 100; stiff dynamics .* otherwise raise `max_steps`,"
            r" loosen the tolerance, or give"
        ),
    ) as caught:
        floater.solve(
            lambda t, p: torch.cos(torch.full_like(p, t)),
            ONE.double(),
            torch.tensor([100.0]),
            solver=solver,
        )
    assert 0 < caught.value.time < 100
    assert caught.value.magnitude == pytest.approx(abs(1 + math.sin(caught.value.time)), rel=1e-5)


def stiff(t: float, p: Tensor) -> Tensor:
    """An explicit method needs about λ/3.3 steps a unit of time: 300,000 here."""
    return -1e6 * (p - math.cos(t))


def test_stiff_dynamics_stop_long_before_the_budget_is_used_up() -> None:
    calls = 0

    def h(t: float, p: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return stiff(t, p)

    with pytest.raises(
        TooManySteps,
        match=(
            r"stopped at time 0\.\d+ \(largest \|p\| there: .*\): at the pace of the last steps"
            r" about \d\.\de\+07 are needed to "
            r"reach time 100, but max_steps is 100000; stiff dynamics .*: lower the weights;"
            r" otherwise raise `max_steps`"
        ),
    ) as caught:
        floater.solve(h, ONE.double(), torch.tensor([100.0]))
    assert calls < 30_000
    assert 0.005 < caught.value.time < 0.05
    assert caught.value.magnitude == pytest.approx(1.0, rel=1e-3)


def test_giving_up_leaves_every_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    p, near, far = ONE.double(), torch.tensor([0.0005, 0.0035]).double(), torch.tensor([100.0])
    never_watched = floater.solve(stiff, p, near)
    monkeypatch.setattr(step_rules, "_PACE_WINDOW", 400)
    whole = floater.trajectory(stiff, p, 0.0005)
    for _ in range(2):
        with pytest.raises(TooManySteps, match="at the pace of the last steps"):
            whole(far)
    assert whole.steps == 400
    assert torch.equal(whole(near), never_watched)
    assert torch.equal(floater.solve(stiff, p, near), never_watched)
    assert whole.steps > 800


def test_dynamics_that_calm_down_are_given_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pace is looked at first, it is fifty times too slow for the budget; half the budget
    is enough.
    """
    monkeypatch.setattr(step_rules, "_PACE_WINDOW", 400)
    solver = Dopri5(max_steps=2_000)
    whole = floater.trajectory(
        lambda t, p: -3e3 * math.exp(-t) * (p - 1), 0 * ONE.double(), 200.0, solver=solver
    )
    assert 400 < whole.steps < 1_000
    pace = (whole.grid[400] - whole.grid[200]) / 200
    assert 200.0 / pace > 50 * solver.max_steps


def test_a_larger_budget_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That dynamics calm down all at once cannot be foreseen; `max_steps` says how long to hope."""

    def h(t: float, p: Tensor) -> Tensor:
        return -(3e3 if t < 0.6 else 1.0) * (p - 1)

    monkeypatch.setattr(step_rules, "_PACE_WINDOW", 400)
    with pytest.raises(TooManySteps, match="at the pace of the last steps"):
        floater.solve(h, 0 * ONE.double(), torch.tensor([200.0]), solver=Dopri5(max_steps=2_000))
    states = floater.solve(
        h, 0 * ONE.double(), torch.tensor([200.0]), solver=Dopri5(max_steps=100_000)
    )
    assert float(states) == pytest.approx(1.0, rel=1e-3)


def test_too_many_fixed_steps_are_refused_before_the_first() -> None:
    calls = 0

    def h(t: float, p: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return p

    with pytest.raises(
        TooManySteps,
        match=(
            r"10000 steps of 0\.01 are needed to reach time 100, but max_steps is 50; take longer"
            r" steps, raise"
        ),
    ) as caught:
        floater.solve(h, 2 * ONE, torch.tensor([100.0]), solver=RK4(0.01, max_steps=50))
    assert caught.value.time == 0
    assert caught.value.magnitude == 2
    assert calls <= 2


def test_solver_errors_can_be_sent_to_another_process() -> None:
    with pytest.raises(TooManySteps) as caught:
        floater.solve(growth, 2 * ONE, torch.tensor([100.0]), solver=RK4(0.01, max_steps=50))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is TooManySteps
    assert (str(copy), copy.time, copy.magnitude) == (str(caught.value), 0.0, 2.0)
