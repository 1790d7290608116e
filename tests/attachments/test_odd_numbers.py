"""Unusual positions and sizes."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch

import floater
from floater.errors import (
    ArgumentError,
    LengthError,
    StateOverflow,
)

from .attach_models import MOVING, PAD, VOCABULARY, logits, make


def test_negative_and_fractional_position_ids_are_refused() -> None:
    model = make("bert")
    floater.attach(model, MOVING, positions="replace")
    ids = torch.randint(3, VOCABULARY, (1, 4))
    kept = make("bert")
    floater.attach(kept, MOVING)
    bare = make("bert")
    floater.attach(bare, floater.NoPositionConfig(), positions="replace")
    for one in (model, kept, bare):
        with pytest.raises(
            ArgumentError, match="`position_ids` must not be negative, but contain -3"
        ):
            one(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, -3]]))
    with pytest.raises(
        ArgumentError,
        match=r"`position_ids` must be integers, but are torch.float32; .*attachment.at",
    ):
        model(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, 2.5]]))


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_robertas_ids_may_say_anything_of_padding(padding: int) -> None:
    """Rows of its table from 2 on for tokens; what stands at padding must not shift the batch."""
    model = make("roberta")
    floater.attach(model, MOVING)
    ids = torch.randint(3, VOCABULARY, (2, 8))
    ids[1, 5:] = PAD
    real = ids.ne(PAD)
    rows = torch.where(real, torch.arange(8) + PAD + 1, padding)
    with torch.no_grad():
        counted = logits(model, {"input_ids": ids, "attention_mask": real.long()})
        given = logits(
            model, {"input_ids": ids, "attention_mask": real.long(), "position_ids": rows}
        )
    torch.testing.assert_close(given[real], counted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [MOVING, floater.SinusoidalConfig()], ids=["flow", "sinusoidal"])
def test_positions_far_apart_are_evaluated_alone(config: Any) -> None:
    model = make("bert")
    flow = isinstance(config, floater.FlowConfig)
    chosen = (
        floater.FlowConfig(
            pace="free", zero_init=False, initial_scale=0.7, init_scale=0.1, horizon=5.0
        )
        if flow
        else config
    )
    attached = floater.attach(model, chosen, sites="input", positions="replace")
    ids, far = (
        torch.randint(3, VOCABULARY, (1, 4)),
        torch.tensor([[3, 2_000_000, 10_000_000, 2_000_000]]),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = far.to(torch.float64) * attached.delta
    if flow:  # of the solver, the steps to t = 10⁶ are the cost
        far, times = far // 1000, times / 1000
    with torch.no_grad():
        here = logits(model, {"input_ids": ids, "position_ids": far})
        with attached.at(times):
            there = logits(model, {"input_ids": ids})
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ) / 1024 < 300  # MB; the table would take 640


@pytest.mark.parametrize(
    "call",
    [
        lambda: floater.SinusoidalConfig().build(18, 512).table(10**9),
        lambda: MOVING.build(18, 512).table(10**12),
    ],
)
def test_tables_that_no_machine_holds_are_refused_at_once(call: Any) -> None:
    with pytest.raises(
        LengthError,
        match=(
            r"A table of [\d,]+ positions, 18 sites and 512 dimensions would take at least .* of"
            r" memory, but"
        ),
    ):
        call()


def test_a_recurrent_encoder_does_not_step_for_ever() -> None:
    with pytest.raises(
        LengthError,
        match="steps through all positions, at most 200,000, but position 10,000,000 was requested",
    ):
        floater.RecurrentConfig().build(1, 4)(torch.tensor([1e6]))


@pytest.mark.parametrize("hidden", [10**9, 10**18])
def test_an_encoder_that_no_machine_holds_is_refused_before_it_is_built(hidden: int) -> None:
    model = make("bert")
    with pytest.raises(
        ArgumentError, match=r"The weights of FlowConfig would take|cannot be built"
    ):
        floater.attach(model, floater.FlowConfig(hidden=hidden))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_encodings_that_float16_cannot_hold_are_refused() -> None:
    flow = MOVING.build(2, 8).half()
    assert torch.isfinite(flow.table(100)).all()
    with pytest.raises(
        StateOverflow,
        match=r"States must be at most 65,504 in float16, but are larger from t = .* bfloat16 or",
    ):
        flow.table(100_000)
    steep = floater.MLPDynamics(8).half()
    with torch.no_grad():
        steep.second.bias.fill_(6e4)
    start = torch.zeros(2, 8, dtype=torch.float16)
    with pytest.raises(StateOverflow, match="larger from t = 5 on") as caught:
        floater.solve(steep, start, torch.tensor([0.0, 1.0, 5.0, 50.0]))
    assert caught.value.time == 5.0
