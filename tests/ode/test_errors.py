"""Every mistake has its error, and the error says where the solver stood and what to do."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater import RK4, Dopri5, Euler, LinearDynamics, Midpoint, MLPDynamics
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
from floater.ode import Gradient, step_rules

ONE = torch.ones(1)


def square(t: float, p: Tensor) -> Tensor:
    """p(t) = 1 / (1 - t) from p(0) = 1."""
    return p * p


def growth(t: float, p: Tensor) -> Tensor:
    return p


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


def test_perceptron_that_overflows() -> None:
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
    law, begin = floater.MLPDynamics(16), torch.randn(3, 16)
    with pytest.raises(
        StepSizeUnderflow, match=r"loosen rtol/atol or solve in float64 \(rtol=1e-12 is too fine"
    ):
        floater.solve(law, begin, torch.tensor([2.0]), solver=Dopri5(rtol=1e-12, atol=1e-12))


@pytest.mark.parametrize("rtol", [1e-300, 1e-25])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_tolerance_that_no_number_resolves_is_refused_at_once(
    rtol: float, dtype: torch.dtype
) -> None:
    law = lambda t, p: torch.sin(p)  # noqa: E731
    calls: tuple[tuple[Any, Any], ...] = (
        (floater.solve, torch.tensor([2.0])),
        (floater.trajectory, 2.0),
    )
    for call, end in calls:
        with pytest.raises(
            ArgumentError,
            match=rf"`rtol` of Dopri5 must be at least .* but is {rtol:g}, which is too fine",
        ):
            call(law, ONE.to(dtype), end, solver=Dopri5(rtol=rtol))


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

    def law(t: float, p: Tensor) -> Tensor:
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
        floater.solve(law, ONE.double(), torch.tensor([100.0]))
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

    def law(t: float, p: Tensor) -> Tensor:
        return -(3e3 if t < 0.6 else 1.0) * (p - 1)

    monkeypatch.setattr(step_rules, "_PACE_WINDOW", 400)
    with pytest.raises(TooManySteps, match="at the pace of the last steps"):
        floater.solve(law, 0 * ONE.double(), torch.tensor([200.0]), solver=Dopri5(max_steps=2_000))
    states = floater.solve(
        law, 0 * ONE.double(), torch.tensor([200.0]), solver=Dopri5(max_steps=100_000)
    )
    assert float(states) == pytest.approx(1.0, rel=1e-3)


def test_too_many_fixed_steps_are_refused_before_the_first() -> None:
    calls = 0

    def law(t: float, p: Tensor) -> Tensor:
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
        floater.solve(law, 2 * ONE, torch.tensor([100.0]), solver=RK4(0.01, max_steps=50))
    assert caught.value.time == 0
    assert caught.value.magnitude == 2
    assert calls <= 2


def test_solver_errors_can_be_sent_to_another_process() -> None:
    with pytest.raises(TooManySteps) as caught:
        floater.solve(growth, 2 * ONE, torch.tensor([100.0]), solver=RK4(0.01, max_steps=50))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is TooManySteps
    assert (str(copy), copy.time, copy.magnitude) == (str(caught.value), 0.0, 2.0)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            torch.tensor([0.0, 2.0, 1.5]),
            r"`times` must be non-decreasing, but 2 is followed by 1\.5 \(index 2\); sort",
        ),
        (torch.tensor([0.0, math.nan]), r"`times` must be finite, but contain nan"),
        (torch.tensor([0.0, math.inf]), r"`times` must be finite, but contain inf"),
        (torch.tensor([-0.5, 1.0]), r"`times` must not be before start = 0, but contain -0\.5"),
        (
            torch.tensor([[0.0, 1.0]]),
            r"`times` must be 1-D, but have shape \(1, 2\); call a trajectory for other shapes",
        ),
        (
            torch.tensor(1.0),
            r"`times` must be 1-D, but have shape \(\); call a trajectory for other shapes",
        ),
        (torch.tensor([True]), r"`times` must be real numbers, but are torch\.bool"),
        (torch.tensor([1j]), r"`times` must be real numbers, but are torch\.complex64"),
    ],
    ids=["decreasing", "nan", "infinite", "before", "2-D", "0-D", "bool", "complex"],
)
def test_times(times: Tensor, message: str) -> None:
    with pytest.raises(TimesError, match=message):
        floater.solve(growth, ONE, times)


def test_times_of_a_trajectory() -> None:
    path = floater.trajectory(growth, ONE, 3.0, start=1.0)
    with pytest.raises(TimesError, match=r"`times` must not be before start = 1, but contain 0\.5"):
        path(torch.tensor([2.0, 0.5]))
    with pytest.raises(TimesError, match=r"`times` must be finite, but contain nan"):
        path(torch.tensor(math.nan))
    with pytest.raises(TimesError, match=r"`times` must be real numbers, but are torch\.bool"):
        path(torch.tensor(True))


@pytest.mark.parametrize("end", [math.nan, math.inf, -1.0, "far", None])
def test_end(end: Any) -> None:
    with pytest.raises(TimesError, match=r"`end` must be a finite number ≥ start = 0, but is"):
        floater.trajectory(growth, ONE, end)


@pytest.mark.parametrize("start", [math.nan, math.inf, "now", None])
def test_start(start: Any) -> None:
    message = r"`start` must be a finite number, but is"
    with pytest.raises(ArgumentError, match=message):
        floater.solve(growth, ONE, torch.tensor([1.0]), start=start)
    with pytest.raises(ArgumentError, match=message):
        floater.trajectory(growth, ONE, 1.0, start=start)


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (
            torch.ones(2, dtype=torch.int64),
            r"`initial` must be a tensor of floating-point numbers, but is torch\.int64",
        ),
        ([1.0, 2.0], r"`initial` must be a tensor of floating-point numbers, but is list"),
        (
            torch.ones(2, dtype=torch.complex64),
            r"`initial` must be a tensor of floating-point numbers, but is torch\.com",
        ),
        (torch.empty(0, 3), r"`initial` must contain at least one number, but has shape \(0, 3\)"),
    ],
    ids=["integers", "list", "complex", "empty"],
)
def test_initial(initial: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        floater.solve(growth, initial, torch.tensor([1.0]))
    with pytest.raises(ArgumentError, match=message):
        floater.trajectory(growth, initial, 1.0)


@pytest.mark.parametrize("solver", ["dopri5", Dopri5, None])
def test_solver(solver: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"`solver` must be Dopri5\(\), RK4\(step\), Midpoint\(step\) or Euler\(step\)",
    ):
        floater.solve(growth, ONE, torch.tensor([1.0]), solver=solver)


def test_gradient() -> None:
    gradient: Any = "backprop"
    with pytest.raises(
        ArgumentError,
        match=r"`gradient` must be one of 'discrete', 'adjoint', 'autograd', but is 'backprop'",
    ):
        floater.solve(growth, ONE, torch.tensor([1.0]), gradient=gradient)


@pytest.mark.parametrize("value", [0.0, -1e-3, math.nan, math.inf, "small"])
@pytest.mark.parametrize("field", ["rtol", "atol", "max_steps", "max_step"])
def test_settings_of_dopri5(field: str, value: Any) -> None:
    with pytest.raises(
        ArgumentError, match=rf"`{field}` of Dopri5 must be a positive finite number, but is "
    ):
        Dopri5(**{field: value})


@pytest.mark.parametrize("value", [0.0, -1e-3, math.nan, math.inf, None])
@pytest.mark.parametrize("kind", [RK4, Midpoint, Euler])
def test_settings_of_fixed_steps(kind: type[RK4], value: Any) -> None:
    with pytest.raises(
        ArgumentError, match=rf"`step` of {kind.__name__} must be a positive finite number, but is "
    ):
        kind(value)
    with pytest.raises(
        ArgumentError, match=rf"`max_steps` of {kind.__name__} must be a positive finite number"
    ):
        kind(0.1, max_steps=value)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_slope_of_the_wrong_shape(gradient: Gradient) -> None:
    with pytest.raises(
        ArgumentError,
        match=(
            r"must return a slope of the state's shape and type, \(2, 3\) of torch.float32, but"
            r" returned \(3,\)"
        ),
    ):
        floater.solve(lambda t, p: p[0], torch.ones(2, 3), torch.tensor([1.0]), gradient=gradient)


@pytest.mark.parametrize(
    "dynamics",
    [lambda p: p, torch.nn.Linear(3, 3), lambda t, p, q: p],
    ids=["h(p)", "module", "h(t, p, q)"],
)
def test_dynamics_that_do_not_take_time_and_state(dynamics: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"`dynamics` must take two arguments, the time and the state, but .* does not; if",
    ):
        floater.solve(dynamics, torch.ones(3), torch.tensor([1.0]))


@pytest.mark.parametrize("dynamics", [MLPDynamics, None, 3.0])
def test_dynamics_that_are_none(dynamics: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"`dynamics` must be a module or a function h\(t, p\), but is"
    ):
        floater.solve(dynamics, torch.ones(3), torch.tensor([1.0]))


@pytest.mark.parametrize("make", [LinearDynamics, floater.SinusoidDynamics])
def test_size_of_the_state_of_dynamics_without_a_fast_path(make: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"`p` must have the dynamics' size 4 as its last dimension, but has shape \(2, 3\)",
    ):
        floater.solve(make(4), torch.ones(2, 3), torch.tensor([1.0]))


def test_steps_without_number() -> None:
    with pytest.raises(TooManySteps, match=r"inf steps of 1e-300 are needed to reach time 1e\+10"):
        floater.solve(growth, ONE, torch.tensor([1e10]), solver=Euler(1e-300))


def test_messages_stay_on_one_line() -> None:
    end: Any = torch.zeros(100, 100)
    with pytest.raises(
        TimesError, match=r"`end` must be a finite number ≥ start = 0, but is a Tensor\."
    ):
        floater.trajectory(growth, ONE, end)


def test_size_of_the_state() -> None:
    with pytest.raises(
        ArgumentError,
        match=(
            r"`initial` must have the dynamics' size 4 as its last dimension, but has shape"
            r" \(2, 3\)"
        ),
    ):
        floater.solve(MLPDynamics(4), torch.ones(2, 3), torch.tensor([1.0]))


def test_type_of_the_state() -> None:
    message = (
        r"`initial` must have the dynamics' type and device \(torch\.float64 on cpu\), but is"
        r" torch\.float32 on cpu"
    )
    with pytest.raises(ArgumentError, match=message):
        floater.solve(MLPDynamics(4).double(), torch.ones(4), torch.tensor([1.0]))


def test_times_with_gradients_on_a_trajectory_without_polynomials() -> None:
    times = torch.tensor([1.0], requires_grad=True)
    path = floater.Trajectory(
        growth, ONE, solver=RK4(0.1), gradient="discrete", start=0.0, keep_dense=False
    )
    with pytest.raises(
        ArgumentError,
        match="`times` that require gradients need a trajectory that stores its polynomials",
    ):
        path(times)


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


def test_weights_of_a_perceptron_changed_before_the_adjoint() -> None:
    """The adjoint calls the dynamics again, whichever way the states were found."""
    dynamics = MLPDynamics(3)
    states = floater.solve(dynamics, torch.ones(3), torch.tensor([1.0]), gradient="adjoint")
    with torch.no_grad():
        dynamics.first.weight.mul_(2)
    with pytest.raises(StaleTrajectoryError, match=STALE):
        states.sum().backward()


def test_weights_of_a_perceptron_changed_before_the_discrete_gradient() -> None:
    """The fast path holds its own copy of the weights: the gradient is that of the solve."""
    dynamics, p = MLPDynamics(3), torch.ones(3)
    (wanted,) = torch.autograd.grad(
        floater.solve(dynamics, p, torch.tensor([1.0])).sum(),
        [dynamics.first.weight],
        retain_graph=True,
    )
    states = floater.solve(dynamics, p, torch.tensor([1.0]))
    with torch.no_grad():
        dynamics.first.weight.mul_(2)
    assert torch.equal(torch.autograd.grad(states.sum(), [dynamics.first.weight])[0], wanted)


def test_weights_changed_before_a_trajectory_is_asked_again() -> None:
    dynamics = LinearDynamics(3)
    path = floater.trajectory(dynamics, torch.ones(3), 1.0)
    with torch.no_grad():
        dynamics.linear.weight.mul_(2)
    with pytest.raises(StaleTrajectoryError, match=STALE):
        path(torch.tensor([0.5]))
