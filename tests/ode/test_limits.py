"""One position, a hundred thousand positions, and what they cost in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import floater
from floater import RK4, LinearDynamics, MLPDynamics
from floater.ode import Gradient, Solver
from floater.ode.rows import Rows

from .systems import relative_error


@pytest.mark.parametrize("time", [0.0, 0.1])
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_one_position(time: float, gradient: Gradient) -> None:
    dynamics = MLPDynamics(64, horizon=100.0)
    p = torch.randn(4, 64, requires_grad=True)
    states = floater.solve(dynamics, p, torch.tensor([time]), gradient=gradient)
    assert states.shape == (1, 4, 64)
    (gradient_of_p,) = torch.autograd.grad(states.sum(), p)
    assert torch.isfinite(gradient_of_p).all()


@pytest.mark.slow
def test_a_hundred_thousand_positions(record_property: Callable[[str, object], None]) -> None:
    dynamics = MLPDynamics(64, horizon=10.0)
    p = torch.randn(4, 64)
    times = 0.1 * torch.arange(100_000, dtype=torch.float64)
    states = floater.solve(dynamics, p, times)
    largest = float(states.detach().abs().max())
    bound = dynamics.bounds(p, float(times[-1]))[1]
    record_property("largest_state", largest)
    print(f"largest |p| over 100,000 positions: {largest:.1f}, bound {bound:.1f}")
    assert torch.isfinite(states).all()
    assert largest <= bound
    computed = torch.autograd.grad(states[-1].sum(), list(dynamics.parameters()))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in computed)


def test_gradient_after_thirty_thousand_positions() -> None:
    """Where |p| is large a step may be long for p and yet too long for the gradient, which then
    grows without end.
    """
    dynamics = MLPDynamics(64, horizon=10.0).double()
    p = torch.randn(4, 64, dtype=torch.float64)
    time = torch.tensor([3000.0], dtype=torch.float64)
    computed, expected = (
        torch.autograd.grad(
            floater.solve(dynamics, p, time, solver=solver).sum(), list(dynamics.parameters())
        )
        for solver in (floater.Dopri5(), floater.Dopri5(rtol=1e-8, atol=1e-9))
    )
    assert max(relative_error(a, b) for a, b in zip(computed, expected, strict=True)) < 1e-2


MEASURE = """
import torch, floater

def kilobytes(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key + ":"))

torch.set_num_threads(1)
torch.manual_seed(0)
dynamics, p = floater.MLPDynamics(64, horizon=10.0), torch.randn(4, 64)
times = 0.1 * torch.arange(100_000, dtype=torch.float64)
floater.solve(dynamics, p, times[:200]).sum().backward()
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
before = kilobytes("VmRSS")
states = floater.solve(dynamics, p, times)
size = states.numel() * states.element_size() / 1024
print((kilobytes("VmHWM") - before) / size, kilobytes("VmRSS") / size)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory cannot be reset here"
)
def test_peak_memory_of_a_hundred_thousand_positions(
    record_property: Callable[[str, object], None],
) -> None:
    """With gradients enabled, in units of the output."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    ratio = float(done.stdout.split()[0])
    record_property("peak_memory_over_output", ratio)
    print(f"peak memory over the size of the output: {ratio:.3f}")
    assert 1.0 <= ratio <= 1.2


def held(rows: Rows) -> int:
    """Bytes in the blocks that a path keeps."""
    return sum(block.untyped_storage().nbytes() for block in rows._blocks)


@pytest.mark.parametrize("solver", [floater.Dopri5(), RK4(0.1)], ids=["dopri5", "rk4"])
@pytest.mark.parametrize("make", [MLPDynamics, LinearDynamics])
def test_memory_of_discrete_grows_with_steps_not_with_output_times(
    make: type[MLPDynamics], solver: Solver
) -> None:
    dynamics, p = make(8), torch.randn(2, 8)
    stages, dense = [], []
    for count in (10, 10_000):
        path = floater.Trajectory(
            dynamics, p, solver=solver, gradient="discrete", start=0.0, keep_dense=False
        )
        states = path(torch.linspace(0, 30, count, dtype=torch.float64))
        assert states.requires_grad
        stages.append(held(path._stepper.tape))
        dense.append(held(path._stepper.dense))
    assert stages[0] == stages[1] > 0
    assert dense[0] == dense[1]


def test_memory_of_discrete_is_what_its_steps_need() -> None:
    dynamics, p = MLPDynamics(8, 16), torch.randn(2, 8)
    path = floater.trajectory(dynamics, p, 100.0, solver=RK4(0.1))
    block_bytes = (1 + 4 * 64) * 2 * 16 * 4
    assert path.steps == 1000
    assert held(path._stepper.tape) == 16 * block_bytes


@pytest.mark.parametrize("gradient", ["adjoint", "autograd"])
def test_only_discrete_keeps_stages(gradient: Gradient) -> None:
    path = floater.trajectory(
        MLPDynamics(8), torch.randn(2, 8), 30.0, solver=RK4(0.1), gradient=gradient
    )
    one_step = (1 + 4) * 2 * 8 * 4
    assert held(path._stepper.tape) == one_step


def test_nothing_is_stored_where_nothing_is_differentiated() -> None:
    with torch.no_grad():
        path = floater.trajectory(MLPDynamics(8), torch.randn(2, 8), 30.0, solver=RK4(0.1))
    assert held(path._stepper.tape) == (1 + 4) * 2 * 8 * 4
    assert not path.differentiable
