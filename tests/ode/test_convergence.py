"""Each method converges at its order, at the ends of steps and between them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import floater
from floater import RK4, Euler, Midpoint
from floater.ode import Solver

from .systems import fixed_dopri5

END = 2.0


def h(t: float, p: Tensor) -> Tensor:
    """One component driven by the time, one that drives itself, one driven by both others."""
    wave, growth, product = p
    slope_wave, slope_growth = wave * np.cos(t), growth * (1 - growth)
    return torch.stack(
        (slope_wave, slope_growth, product * (slope_wave / wave + slope_growth / growth))
    )


def solution(t: Tensor) -> Tensor:
    wave, growth = torch.exp(torch.sin(t)), 1 / (1 + 4 * torch.exp(-t))
    return torch.stack((wave, growth, wave * growth), -1)


def errors(solver: Solver) -> tuple[float, float]:
    """Largest error at the ends of steps, and between them."""
    begin = solution(torch.tensor(0.0, dtype=torch.float64))
    path = floater.trajectory(h, begin, END, solver=solver)
    on_grid = torch.tensor(path.grid, dtype=torch.float64)
    on_grid = on_grid[on_grid <= END + 1e-9]
    between = torch.linspace(0.0, END, 1001, dtype=torch.float64)
    errors = [float((path(times) - solution(times)).abs().max()) for times in (on_grid, between)]
    return errors[0], errors[1]


def slope(steps: list[float], values: list[float]) -> float:
    return float(np.polyfit(np.log(steps), np.log(values), 1)[0])


@pytest.mark.parametrize(
    ("method", "order", "counts"),
    [
        (Euler, 1, (64, 128, 256, 512)),
        (Midpoint, 2, (32, 64, 128, 256)),
        (RK4, 4, (16, 32, 64, 128)),
        (fixed_dopri5, 5, (10, 20, 40, 80)),
    ],
    ids=["euler", "midpoint", "rk4", "dopri5"],
)
def test_order_of_convergence(
    method: type[Euler],
    order: int,
    counts: tuple[int, ...],
    record_property: Callable[[str, object], None],
) -> None:
    steps = [END / count for count in counts]
    ends, between = zip(*(errors(method(step)) for step in steps), strict=True)
    fitted, fitted_between = slope(steps, list(ends)), slope(steps, list(between))
    record_property("fitted_order", fitted)
    record_property("fitted_order_between_steps", fitted_between)
    print(
        f"{method.__name__}: fitted order {fitted:.2f} at the ends of steps, {fitted_between:.2f} "
        "between them"
    )
    assert fitted == pytest.approx(order, abs=0.25)
    assert fitted_between > min(order, 4) - 0.25


def test_steps_are_of_one_length() -> None:
    """What the fit above rests on: the loose tolerance leaves the length of a step to
    `max_step`.
    """
    path = floater.trajectory(
        h, solution(torch.tensor(0.0, dtype=torch.float64)), END, solver=fixed_dopri5(0.125)
    )
    np.testing.assert_allclose(np.diff(path.grid), 0.125, rtol=1e-12)


def test_tolerance_controls_the_error() -> None:
    begin = solution(torch.tensor(0.0, dtype=torch.float64))
    times = torch.linspace(0, 10, 57, dtype=torch.float64)
    computed = []
    for rtol in (1e-3, 1e-5, 1e-7, 1e-9):
        states = floater.solve(h, begin, times, solver=floater.Dopri5(rtol=rtol, atol=rtol))
        computed.append(float((states - solution(times)).abs().max()))
        assert computed[-1] < 20 * rtol
    assert computed == sorted(computed, reverse=True)


def test_solver_takes_no_more_steps_than_the_tolerance_needs() -> None:
    """A step rule that crawls would pass every test of accuracy."""
    begin = solution(torch.tensor(0.0, dtype=torch.float64))
    path = floater.trajectory(h, begin, 20.0, solver=floater.Dopri5(rtol=1e-4, atol=1e-5))
    assert path.steps < 60
