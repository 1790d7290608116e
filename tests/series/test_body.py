"""The body that tasks with real-valued times share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import floater
from floater.errors import RunError
from floater.tasks.timed.config import BodyConfig, TimedConfig, TimedPositions
from floater.tasks.timed.model import TimedModel, TimedModelConfig, load_timed
from floater.times import Clock

FLOW = floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.5)


class BodyOnly(TimedModel):
    """Nothing but the body."""

    def __init__(self, config: TimedModelConfig) -> None:
        super().__init__(config)
        self.finish_building()


class Causal(BodyOnly):
    """The same, seeing the past only."""

    causal = True


def settings(times: Literal["real", "index"] = "real", **changes: Any) -> TimedConfig:
    return TimedConfig(
        task="any",
        model=BodyConfig(preset="tiny"),
        positions=TimedPositions(encoder=FLOW, times=times),
        **changes,
    )


def build(model_class: type[TimedModel], config: TimedConfig) -> TimedModel:
    torch.manual_seed(3)
    model = model_class(TimedModelConfig.of(config, {"span": 2.0}))
    torch.nn.Module.eval(model)
    return model


@torch.no_grad()
def test_a_causal_body_does_not_see_what_comes_later() -> None:
    embeds, mask = torch.randn(2, 6, 32), torch.ones(2, 6, dtype=torch.long)
    times = torch.rand(2, 6, dtype=torch.float64).cumsum(1)
    for model_class, causal in ((Causal, True), (BodyOnly, False)):
        model = build(model_class, settings())
        before = model.hidden(embeds, times, mask)
        later, moved = embeds.clone(), times.clone()
        later[:, 4:] += 1
        moved[:, 5] += 1
        after = model.hidden(later, moved, mask)
        assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6) == causal
        assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@torch.no_grad()
def test_without_encodings_the_body_does_not_know_any_order() -> None:
    config = settings().with_positions({"encoder": {"kind": "none"}})
    model, embeds = build(BodyOnly, config), torch.randn(1, 5, 32)
    mask, order = torch.ones(1, 5, dtype=torch.long), torch.tensor([3, 1, 0, 4, 2])
    times = torch.arange(5, dtype=torch.float64).unsqueeze(0)
    torch.testing.assert_close(
        model.hidden(embeds, times, mask)[:, order],
        model.hidden(embeds[:, order], times, mask),
        rtol=0,
        atol=1e-5,
    )


def test_a_saved_model_is_complete_and_belongs_to_its_clock(tmp_path: Path) -> None:
    clock = Clock(unit=60, name="minutes", learned="time")
    model = build(BodyOnly, settings(clock=clock))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path)
    again = load_timed(BodyOnly, tmp_path, clock)
    assert again.config.prepared == {"span": 2.0}
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    with pytest.raises(RunError, match=r"must have the clock of the run .*, but has another one"):
        load_timed(BodyOnly, tmp_path, Clock(unit=1, name="seconds", learned="time"))
    with pytest.raises(RunError, match="must hold a Causal, but holds"):
        load_timed(Causal, tmp_path, clock)
    with pytest.raises(RunError, match="must hold a trained model, but does not"):
        load_timed(BodyOnly, tmp_path / "nothing", clock)


def test_one_solve_serves_an_update_whatever_the_batch() -> None:
    model = build(BodyOnly, settings())
    model.train()
    attached = floater.attachment(model)
    assert attached is not None
    flow: Any = attached.encoder
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for update in range(3):
        for rows in (2, 7):  # two batches are accumulated
            times = 3 * torch.rand(rows, 9, dtype=torch.float64)
            mask = torch.ones(rows, 9, dtype=torch.long)
            model.hidden(torch.randn(rows, 9, 32), times, mask).square().mean().backward()
        assert flow.solves == update + 1
        optimiser.step()
        optimiser.zero_grad()
