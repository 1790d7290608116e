"""Wrong arguments of the solver raise errors that name them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater import RK4, Dopri5, Euler, LinearDynamics, Midpoint, MLPDynamics
from floater.errors import (
    ArgumentError,
    TimesError,
    TooManySteps,
)
from floater.ode import Gradient

from .systems import ONE, growth


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
