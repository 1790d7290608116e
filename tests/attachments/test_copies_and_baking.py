"""Copies, baked tables and cached encodings."""

from __future__ import annotations

import copy
import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.encoders import Flow
from floater.errors import (
    ArgumentError,
    LengthError,
)

from .attach_models import ARCHITECTURES, MOVING, batch, logits, make


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_baking_keeps_the_outputs_and_ends_where_it_says(name: str) -> None:
    model, inputs = make(name), batch(name)
    attached = floater.attach(model, MOVING)
    with torch.no_grad():
        before = logits(model, inputs)
        attached.bake(17)
        assert attached.baked_length == 17
        assert torch.equal(logits(model, inputs), before)
        attached.unbake()
        assert torch.equal(logits(model, inputs), before)
        attached.bake(5)
        with pytest.raises(
            LengthError,
            match=r"baked to 5 positions, but \d+ are needed; call bake\(\d+\) or unbake\(\)",
        ):
            logits(model, inputs)
    with pytest.raises(ArgumentError, match="`length` must be a positive integer, but is 0"):
        attached.bake(0)


def test_a_deep_copy_lives_its_own_life() -> None:
    model, inputs = make("bert"), batch("bert")
    attached = floater.attach(model, MOVING)
    with torch.no_grad():
        before = logits(model, inputs)
        twin = copy.deepcopy(model)
        other = floater.attachment(twin)
        assert other is not None
        assert other is not attached
        assert torch.equal(logits(twin, inputs), before)
        flow: Any = other.encoder
        flow.initial += 1.0
        assert not torch.equal(logits(twin, inputs), before)
        assert torch.equal(logits(model, inputs), before)
        other.detach()
        assert torch.equal(logits(model, inputs), before)


DEEP = floater.FlowConfig(
    pace="free", zero_init=False, init_scale=1.0, initial_scale=0.7, keep_for=3
)


def train_flow(evaluations: tuple[int, ...], steps: int = 12) -> tuple[str, Tensor]:
    """In which of 12 steps h learns, and what it learned, with evaluations and another optimiser's
    steps in between.
    """
    torch.manual_seed(0)
    flow = DEEP.build(2, 8)
    optimiser = torch.optim.SGD(flow.parameters(), lr=0.01)
    other = nn.Linear(2, 2)
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    learns = ""
    for step in range(steps):
        table = flow.train().table(5)
        learns += "1" if table.requires_grad else "0"
        optimiser.zero_grad()
        if table.requires_grad:
            table.square().sum().backward()
        optimiser.step()
        if step in evaluations:
            with torch.no_grad():
                flow.eval().table(9)
            other(torch.ones(2)).sum().backward()
            unrelated.step()
    return learns, flow.initial.detach().clone()


@pytest.mark.parametrize("evaluations", [(4, 7), (0, 1, 2, 3), tuple(range(12))])
def test_an_evaluation_or_an_unrelated_optimiser_changes_nothing_that_is_kept(
    evaluations: tuple[int, ...],
) -> None:
    plain, with_evaluations = train_flow(()), train_flow(evaluations)
    assert plain[0] == with_evaluations[0] == "100100100100"
    assert torch.equal(plain[1], with_evaluations[1])


@pytest.mark.parametrize("how", ["copy", "pickle"])
@pytest.mark.parametrize("positions", ["keep", "replace"])
def test_a_copy_made_while_disabled_is_enabled(positions: Any, how: str) -> None:
    model, inputs = make("bert"), batch("bert")
    attached = floater.attach(model, MOVING, positions=positions)
    with torch.no_grad():
        before = logits(model, inputs)
        with attached.disabled(), attached.at(torch.arange(11) * 0.3):
            twin = copy.deepcopy(model) if how == "copy" else pickle.loads(pickle.dumps(model))
            plain = logits(model, inputs)
        assert torch.equal(logits(twin, inputs), before)
        assert not torch.equal(plain, before)


def test_loading_other_weights_bakes_anew() -> None:
    model, other, inputs = make("bert"), make("bert"), batch("bert")
    attached = floater.attach(model, MOVING)
    ours, theirs = (cast("Flow", one.encoder) for one in (attached, floater.attach(other, MOVING)))
    start = {name: tensor.clone() for name, tensor in ours.state_dict().items()}

    def part() -> None:
        ours.initial.copy_(theirs.initial)
        ours.dynamics.load_state_dict(theirs.dynamics.state_dict())

    def whole() -> None:
        model.load_state_dict(other.state_dict())

    def encoder() -> None:
        ours.load_state_dict(theirs.state_dict())

    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1)
        expected = logits(other, inputs)
        for load in (whole, encoder, part):
            attached.unbake()
            ours.load_state_dict(start)
            attached.bake(20)
            assert (logits(model, inputs) - expected).abs().max() > 1e-2
            load()
            lengths = [attached.baked_length]
            torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-6, atol=1e-6)
            load()
            attached.unbake()
            lengths.append(attached.baked_length)
            assert lengths == [20, None]
            torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-6, atol=1e-6)
