"""Steps that are taken without waiting for their errors, as on an accelerator.

Here the CPU takes that path, so that no device is needed; tests/test_simulated_device.py counts
what a device would be asked to do.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from floater.dynamics import MLPDynamics
from floater.encoders import Flow, FlowConfig
from floater.errors import ArgumentError, SolverError, StaleTrajectoryError
from floater.ode import RK4, Dopri5, Trajectory

MODULES = ("ode.stepper", "ode.output", "ode.discrete", "ode.solve", "encoders.weight_comparison")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as a device that the host runs ahead of."""
    monkeypatch.setenv("FLOATER_KERNEL", "0")
    for module in MODULES:
        monkeypatch.setattr(
            importlib.import_module(f"floater.{module}"), "runs_ahead", lambda tensor: True
        )


def solved(
    dynamics: Callable[..., Tensor], initial: Tensor, times: Tensor, **options: object
) -> tuple[Trajectory, Tensor]:
    settings = {"solver": Dopri5(), "gradient": "discrete", "start": 0.0, "keep_dense": True}
    trajectory = Trajectory(dynamics, initial, **(settings | options))  # type: ignore[arg-type]
    return trajectory, trajectory(times)


def problem(dtype: torch.dtype = torch.float64) -> tuple[MLPDynamics, Tensor, Tensor]:
    torch.manual_seed(0)
    dynamics = MLPDynamics(6, 5, init_scale=1.0).to(dtype)
    initial = torch.randn(3, 6, dtype=dtype, requires_grad=True)
    return dynamics, initial, torch.linspace(0, 12, 97, dtype=torch.float64)


@pytest.mark.usefixtures("ahead")
def test_a_plan_is_followed_and_meets_the_tolerance() -> None:
    dynamics, initial, times = problem()
    first, states = solved(dynamics, initial, times)
    exact = solved(dynamics, initial, times, solver=Dopri5(rtol=1e-10, atol=1e-12))[1]
    with torch.no_grad():
        dynamics.second.weight += 1e-4
    planned, again = solved(dynamics, initial, times, plan=first.next_plan)
    assert planned.grid[1] == pytest.approx(0.92 * first.grid[1])
    reference = solved(dynamics, initial, times, solver=Dopri5(rtol=1e-10, atol=1e-12))[1]
    error, allowed = (again - reference).abs().max(), (states - exact).abs().max()
    assert error <= 2 * allowed + 1e-4
    assert planned.next_plan == first.next_plan


@pytest.mark.usefixtures("ahead")
def test_the_gradient_of_planned_steps_is_exact() -> None:
    dynamics, initial, times = problem()
    plan = solved(dynamics, initial, times)[0].next_plan
    weight = torch.randn(97, 3, 6, dtype=torch.float64)
    inputs = [initial, *dynamics.parameters()]
    gradients = torch.autograd.grad(
        (solved(dynamics, initial, times, plan=plan)[1] * weight).sum(), inputs
    )
    for tensor, gradient in zip(inputs, gradients, strict=True):
        direction = torch.randn_like(tensor)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                tensor.add_(direction, alpha=sign * 1e-6)
            values.append((solved(dynamics, initial, times, plan=plan)[1] * weight).sum().item())
            with torch.no_grad():
                tensor.sub_(direction, alpha=sign * 1e-6)
        numeric = (values[0] - values[1]) / 2e-6
        assert (gradient * direction).sum().item() == pytest.approx(numeric, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("order", ["ascending", "shuffled", "crowded"])
def test_states_and_gradients_equal_those_of_the_usual_path(
    order: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("FLOATER_KERNEL", "0")
    dynamics, initial, times = problem()
    if order == "shuffled":
        times = times[torch.randperm(97)].view(97, 1)
    if order == "crowded":  # nearly all times inside one step
        times = torch.cat((torch.linspace(0, 1e-3, 96, dtype=torch.float64), times[-1:]))
    weight = torch.randn(*times.shape, 3, 6, dtype=torch.float64)
    inputs = [initial, *dynamics.parameters()]

    def outcome() -> list[Tensor]:
        states = solved(dynamics, initial, times)[1]
        return [states, *torch.autograd.grad((states * weight).sum(), inputs)]

    usual = outcome()
    request.getfixturevalue("ahead")
    for before, after in zip(usual, outcome(), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("ahead")
def test_a_plan_that_no_longer_fits_is_given_up() -> None:
    dynamics, initial, times = problem()
    plan = solved(dynamics, initial, times)[0].next_plan
    with torch.no_grad():
        dynamics.first.weight *= 8
        dynamics.second.weight *= 4
    usual, expected = solved(dynamics, initial, times)
    planned, states = solved(dynamics, initial, times, plan=plan)
    assert torch.equal(states, expected)
    assert planned.grid == usual.grid
    assert planned.evaluations > usual.evaluations  # the plan was tried
    assert planned.next_plan == usual.next_plan


@pytest.mark.usefixtures("ahead")
def test_steps_far_shorter_than_needed_are_planned_anew() -> None:
    dynamics, initial, times = problem()
    assert min(solved(dynamics, initial, times)[0].next_plan) > 0.2
    assert solved(dynamics, initial, times, plan=[0.05] * 240)[0].next_plan == []


@pytest.mark.usefixtures("ahead")
def test_times_beyond_a_plan_are_reached() -> None:
    dynamics, initial, times = problem()
    plan = solved(dynamics, initial, times[:40])[0].next_plan
    longer, states = solved(dynamics, initial, times, plan=plan)
    reference = solved(dynamics, initial, times, solver=Dopri5(rtol=1e-10, atol=1e-12))[1]
    assert longer.end >= 12
    assert (states - reference).abs().max() < 1e-2
    assert math.fsum(longer.next_plan) > 11
    # A shorter request keeps the rest of the plan.
    shorter, _ = solved(dynamics, initial, times[:10], plan=longer.next_plan)
    assert math.fsum(shorter.next_plan) == pytest.approx(math.fsum(longer.next_plan))


@pytest.mark.usefixtures("ahead")
def test_fixed_steps_need_no_plan() -> None:
    dynamics, initial, times = problem()
    solution, states = solved(dynamics, initial, times, solver=RK4(0.05))
    assert solution.steps == 240
    assert solution.grid[-1] == pytest.approx(12)
    reference = solved(dynamics, initial, times, solver=Dopri5(rtol=1e-10, atol=1e-12))[1]
    assert (states - reference).abs().max() < 1e-5
    with torch.no_grad():
        dynamics.second.bias.fill_(3e306)
    with pytest.raises(SolverError, match="overflow"):
        solved(dynamics, initial, times, solver=RK4(0.05))


@pytest.mark.usefixtures("ahead")
def test_an_initial_state_that_is_not_finite() -> None:
    dynamics, initial, times = problem()
    plan = solved(dynamics, initial, times)[0].next_plan
    for known in ([], plan):
        with pytest.raises(ArgumentError, match="`initial` must be finite"):
            solved(dynamics, initial * math.nan, times, plan=known)


@pytest.mark.usefixtures("ahead")
def test_a_flow_in_training_follows_its_last_steps() -> None:
    torch.manual_seed(0)
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(4, 16)
    reference = copy.deepcopy(flow)
    optimiser = torch.optim.SGD(flow.parameters(), lr=1e-4)
    weight = torch.randn(200, 4, 16)
    for update in range(4):
        (flow.table(200) * weight).mean().backward()
        solution = flow._solution
        assert solution is not None
        assert bool(solution.trajectory._stepper._planned) == (update > 0)
        optimiser.step()
        optimiser.zero_grad()
    reference.load_state_dict(flow.state_dict())
    torch.testing.assert_close(flow.table(200), reference.table(200), rtol=1e-2, atol=1e-3)
    assert flow.solves == 5


@pytest.mark.usefixtures("ahead")
def test_changes_in_place_are_noticed_at_once_and_others_a_little_later() -> None:
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    before = flow.table(8)
    with torch.no_grad():
        flow.initial.add_(1)
    after = flow.table(8)
    assert not torch.allclose(before, after)
    flow.initial.data += 1
    for _ in range(15):
        flow.table(8)
    with pytest.raises(StaleTrajectoryError, match=r"`\.data`"):
        flow.table(8)


@pytest.mark.usefixtures("ahead")
def test_fused_optimisers_are_noticed_although_they_count_nothing() -> None:
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    optimiser = torch.optim.AdamW(flow.parameters(), lr=0.1, fused=True)
    for update in range(1, 40):
        flow.table(8).sum().backward()
        assert flow.solves == update
        optimiser.step()
    flow.requires_grad_(False)
    flow.table(8)
    flow.table(8)
    assert flow.solves == 40
    other = nn.Parameter(torch.ones(1))
    other.grad = torch.ones(1)
    torch.optim.SGD([other], lr=1.0).step()
    flow.table(8)  # frozen weights do not depend on optimisers
    assert flow.solves == 40


@pytest.mark.usefixtures("ahead")
def test_changes_through_data_raise_before_the_next_solve() -> None:
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    flow.table(8)
    flow.initial.data += 1
    flow.table(8)
    with torch.no_grad():
        flow.initial.add_(1)
    with pytest.raises(StaleTrajectoryError, match="compares_weights"):
        flow.table(8)


@pytest.mark.usefixtures("ahead")
def test_after_the_error_the_flow_solves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    flow.table(8)
    flow.initial.data += 1
    for _ in range(15):
        flow.table(8)
    with pytest.raises(StaleTrajectoryError):
        flow.table(8)
    expected = copy.deepcopy(flow).table(8)
    assert torch.equal(flow.table(8), expected)
    flow.initial.data += 1
    monkeypatch.setattr(Flow, "compares_weights", True)
    expected = copy.deepcopy(flow).table(8)
    torch.testing.assert_close(flow.table(8), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("ahead")
def test_comparisons_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flow, "compares_weights", True)
    flow = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    before = flow.table(8)
    flow.initial.data += 1
    assert not torch.allclose(before, flow.table(8))
