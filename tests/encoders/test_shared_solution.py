"""A flow solves once and notices every change of its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import floater
from floater.encoders import (
    Flow,
    FlowConfig,
)
from floater.errors import TimesError

from .builders import flow


def assert_as_fresh(encoder: Flow, length: int = 30) -> None:
    fresh = (
        FlowConfig(pace="free", zero_init=False, initial_scale=0.5)
        .build(encoder.sites, encoder.dim)
        .to(encoder.initial)
    )
    fresh.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder.table(length), fresh.table(length))


def step_with(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> Callable[[Flow], None]:
    def change(encoder: Flow) -> None:
        optimiser = make(list(encoder.parameters()))
        encoder.table(30).square().sum().backward()
        optimiser.step()

    return change


def load(assign: bool) -> Callable[[Flow], None]:
    def change(encoder: Flow) -> None:
        encoder.load_state_dict(flow().state_dict(), assign=assign)

    return change


def edit_in_place(encoder: Flow) -> None:
    with torch.no_grad():
        encoder.initial[0, 0] += 1e-3


def edit_data(encoder: Flow) -> None:
    encoder.get_parameter("dynamics.first.weight").data[0, 0] += 1e-3


def edit_data_without_moving_the_sum(encoder: Flow) -> None:
    weight = encoder.get_parameter("dynamics.first.weight").data
    weight[0, 0], weight[1, 1] = weight[1, 1].clone(), weight[0, 0].clone()


def replace_parameter(encoder: Flow) -> None:
    encoder.initial = nn.Parameter(encoder.initial.detach() * 2)


CHANGES: dict[str, Callable[[Flow], None]] = {
    "fused AdamW": step_with(lambda weights: torch.optim.AdamW(weights, fused=True)),
    "foreach AdamW": step_with(lambda weights: torch.optim.AdamW(weights, foreach=True)),
    "for-loop AdamW": step_with(
        lambda weights: torch.optim.AdamW(weights, foreach=False, fused=False)
    ),
    "SGD": step_with(lambda weights: torch.optim.SGD(weights, lr=0.1)),
    "fused SGD": step_with(lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True)),
    "load_state_dict": load(assign=False),
    "load_state_dict(assign=True)": load(assign=True),
    "in place": edit_in_place,
    ".data": edit_data,
    ".data, sum unchanged": edit_data_without_moving_the_sum,
    "a new parameter": replace_parameter,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_reused_table_equals_a_fresh_solve_after(name: str) -> None:
    encoder = flow()
    before = encoder.table(30).detach().clone()
    solves = encoder.solves
    encoder.table(30)
    assert encoder.solves == solves
    CHANGES[name](encoder)
    assert_as_fresh(encoder)
    assert not torch.equal(encoder.table(30), before)
    assert encoder.solves == solves + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_reused_table_follows_a_change_of_type(dtype: torch.dtype) -> None:
    encoder = flow()
    encoder.table(30)
    encoder.to(dtype)
    assert encoder.table(30).dtype == dtype
    assert_as_fresh(encoder)


def test_copies_are_independent() -> None:
    encoder = flow()
    encoder.table(30)
    twin = copy.deepcopy(encoder)
    assert torch.equal(twin.table(30), encoder.table(30))
    edit_data(twin)
    assert_as_fresh(twin)
    assert_as_fresh(encoder)
    assert not torch.equal(twin.table(30), encoder.table(30))


def test_gradients_reach_the_parameters_of_today_after_assign() -> None:
    encoder = flow()
    encoder.table(30)
    same = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(same, assign=True)
    encoder.table(30).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_one_solve_serves_many_micro_batches_and_gradients_add_up() -> None:
    encoder, twin = flow(), flow()
    twin.load_state_dict(encoder.state_dict())
    weights = torch.randn(8, 30, 3, 8)
    for weight in weights:
        (encoder.table(30) * weight).sum().backward()
    assert encoder.solves == 1
    (twin.table(30) * weights.sum(0)).sum().backward()
    for ours, whole in zip(encoder.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, whole.grad, rtol=1e-4, atol=1e-4)


def test_longer_tables_continue_the_solution_and_writing_into_a_result_does_no_harm() -> None:
    encoder = flow()
    with torch.no_grad():
        first = encoder.table(10)
        expected = first.clone()
        first.zero_()
        assert torch.equal(encoder.table(10), expected)
        encoder.table(100)
    assert encoder.solves == 1
    assert_as_fresh(encoder, 100)


def test_a_solution_made_in_inference_mode_serves_training() -> None:
    encoder = flow()
    with torch.inference_mode():
        seen = encoder.table(30)
    table = encoder.table(60)
    table.sum().backward()
    assert encoder.solves == 1
    assert torch.equal(seen, table[:30])
    assert encoder.initial.grad is not None


def test_freezing_and_thawing() -> None:
    encoder = flow()
    encoder.requires_grad_(False)
    assert not encoder.table(5).requires_grad
    encoder.requires_grad_(True)
    encoder.table(5).sum().backward()
    assert encoder.initial.grad is not None


def test_keep_for_holds_the_table_for_k_optimiser_steps() -> None:
    encoder = flow(keep_for=3)
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
    tables, trained = [], []
    for _ in range(6):
        table = encoder.table(10)
        tables.append(table.detach().clone())
        trained.append(table.requires_grad)
        optimiser.zero_grad()
        if table.requires_grad:
            table.square().sum().backward()
        else:
            for parameter in encoder.parameters():
                parameter.grad = torch.ones_like(parameter)
        optimiser.step()
    assert trained == [True, False, False, True, False, False]
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[2], tables[3])
    assert encoder.solves == 2
    encoder.eval()
    assert_as_fresh(encoder)


@pytest.mark.parametrize("keep_for", [1, 3])
def test_dynamics_off_the_fast_path_train(keep_for: int) -> None:
    """A step of length zero changes no weight but counts as a change; then longer times are asked
    for.
    """
    torch.manual_seed(0)
    flow = (
        floater.FlowConfig(
            pull=1.0, horizon=2.0, zero_init=False, initial_scale=0.5, keep_for=keep_for
        )
        .build(2, 16)
        .train()
    )
    for lr in (0.0, 0.1, 0.1, 0.0):
        optimiser = torch.optim.SGD(flow.parameters(), lr=lr)
        for length in (4, 40):
            table = flow.table(length)
            alone = floater.solve(
                flow.dynamics, flow.initial, torch.arange(length, dtype=torch.float64) * 0.1
            )
            assert torch.allclose(table, alone, atol=1e-6)
        optimiser.zero_grad()
        table.square().sum().backward()
        assert all(parameter.grad is not None for parameter in flow.parameters())
        optimiser.step()


@pytest.mark.parametrize("pace", ["safe", "free"])
def test_polynomials_of_a_flow_give_its_encodings(pace: Any) -> None:
    torch.manual_seed(0)
    flow = floater.FlowConfig(pace=pace, zero_init=False, initial_scale=0.3).build(3, 16)
    times = torch.tensor([0.0, 7.3, 0.25, 3.0])
    pieces = flow.pieces(7.3)
    assert pieces is not None
    located = pieces.locate(times)
    columns = pieces.coefficients.flatten(0, 1).unbind(1)
    encodings = torch.stack([located.states(column) for column in columns], 1)
    torch.testing.assert_close(encodings, flow(times), rtol=1e-5, atol=1e-5)
    assert flow.solves == 1
    assert flow.bfloat16().pieces(1.0) is None


def test_polynomials_of_a_shared_solution_have_a_gradient_in_its_first_step_only() -> None:
    flow = floater.FlowConfig(zero_init=False, keep_for=2).build(2, 16)
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
    learns = []
    for _ in range(4):
        pieces = flow.pieces(2.0)
        assert pieces is not None
        learns.append(pieces.coefficients.requires_grad)
        if learns[-1]:
            pieces.coefficients.square().sum().backward()
        optimizer.step()
    assert learns == [True, False, True, False]
    assert flow.solves == 2


def test_growing_tables_without_gradients_are_computed_in_advance() -> None:
    """As in generation; the rows are those of a table of their own."""
    torch.manual_seed(0)
    encoder = FlowConfig(pace="free", zero_init=False, initial_scale=0.5).build(2, 16)
    assert isinstance(encoder, Flow)
    reference = copy.deepcopy(encoder)
    calls = []
    original = encoder.forward

    def counted(times: torch.Tensor) -> torch.Tensor:
        calls.append(len(times))
        return original(times)

    encoder.forward = counted  # type: ignore[method-assign]
    with torch.inference_mode():
        tables = [encoder.table(length) for length in range(1, 130)]
    assert len(calls) < 30  # as far as the steps taken so far reach
    assert encoder.solves == 1
    for mistake in (0, -1, 2.5):
        with torch.no_grad(), pytest.raises(TimesError, match="must be a positive integer"):
            encoder.table(mistake)  # type: ignore[arg-type]
    for length, table in enumerate(tables, 1):
        assert len(table) == length
        if length % 16 == 1:
            assert torch.equal(table, reference.table(length).detach())
    with torch.no_grad():
        tables[0].add_(1)  # into the rows that are kept
        assert torch.equal(encoder.table(5), reference.table(5))
        encoder.initial.add_(1)
        assert not torch.allclose(encoder.table(5), reference.table(5))
    table = encoder.table(5)
    assert table.requires_grad
    encoder.requires_grad_(False)
    before = len(calls)
    for _ in range(4):  # frozen: nothing is evaluated again
        assert not encoder.table(5).requires_grad
    assert len(calls) == before
    encoder.requires_grad_(True)
    assert encoder.table(5).requires_grad
