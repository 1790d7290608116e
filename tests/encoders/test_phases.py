"""The clocks of a rotary model's phases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from floater.encoders import PhaseFlow, PhaseFlowConfig
from floater.errors import ConfigError

HALF, LENGTH, FACTOR = 24, 256, 4.0
FREQUENCIES = tuple(10_000.0 ** (-place / HALF) for place in range(HALF))


def built(**settings: Any) -> PhaseFlow:
    torch.manual_seed(0)
    config = PhaseFlowConfig(
        length=LENGTH, frequencies=FREQUENCIES, **{"factor": FACTOR, **settings}
    )
    return config.build(1, HALF)


def moved(scale: float = 1.0, **settings: Any) -> PhaseFlow:
    """Clocks whose network is not zero."""
    encoder = built(**settings)
    assert encoder.flow is not None
    torch.nn.init.normal_(encoder.flow.dynamics.second.weight, std=scale)  # type: ignore[union-attr, arg-type]
    return encoder


def from_transformers(kind: str) -> tuple[Tensor, float]:
    """Frequencies and attention scale that transformers computes for a scaling."""
    parameters: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": 10_000.0,
        "factor": 1.0 if kind == "dynamic" else FACTOR,
    }
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = LENGTH
    config = LlamaConfig(
        hidden_size=2 * HALF,
        num_attention_heads=1,
        max_position_embeddings=LENGTH if kind == "dynamic" else int(FACTOR * LENGTH),
        rope_parameters=parameters,
    )
    # with `dynamic` and a factor of 1, the base grows with the length of the input as NTK's does
    seq_len = int(FACTOR * LENGTH)
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)
    return frequencies, float(scale)


@pytest.mark.parametrize(
    ("scaling", "theirs"), [("linear", "linear"), ("ntk", "dynamic"), ("yarn", "yarn")]
)
@pytest.mark.parametrize("learned", [False, True])
def test_fixed_scalings_are_those_of_transformers(scaling: str, theirs: str, learned: bool) -> None:
    frequencies, scale = from_transformers(theirs)
    encoder = built(scaling=scaling, learned=learned)
    index = torch.arange(600, dtype=torch.float64)
    phases = index[:, None] * torch.tensor(FREQUENCIES) + encoder.table(600)[:, 0]
    torch.testing.assert_close(phases, index[:, None] * frequencies.double(), rtol=1e-6, atol=1e-4)
    assert encoder.attention_scale == pytest.approx(scale)


def test_log_time_is_one_concave_clock() -> None:
    clocks = built(scaling="log", learned=False).clocks(1024)
    expected = LENGTH * torch.log1p(torch.arange(1024, dtype=torch.float64) / LENGTH)
    torch.testing.assert_close(clocks, expected[:, None].expand(-1, HALF), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "yarn", "log"])
def test_learned_clocks_start_at_their_scaling_exactly(scaling: str) -> None:
    fresh, fixed = built(scaling=scaling), built(scaling=scaling, learned=False)
    assert torch.equal(fresh.table(700), fixed.table(700))
    assert fresh.num_parameters() == (HALF + 1) * 32 + 32 + 32 * HALF + HALF == 1_624
    if scaling == "none":
        assert not fresh.table(700).any()


@pytest.mark.parametrize("scaling", ["none", "yarn", "log"])
def test_every_clock_runs_forward_whatever_the_weights(scaling: str) -> None:
    clocks = moved(3.0, scaling=scaling, rtol=1e-6, atol=1e-8).double().clocks(1500)
    fixed = built(scaling=scaling, learned=False).clocks(1500)
    assert (clocks - fixed).abs().max() > 10
    assert clocks.diff(dim=0).min() > -1e-3  # the error of the solver, in tokens


def test_exact_clocks_change_past_the_length_only() -> None:
    table = moved(exact=True).table(400)[:, 0]
    assert not table[: LENGTH + 1].any()
    assert bool(table[LENGTH + 1 :].any(1).all())
    assert table.diff(dim=0).abs().max() < 5  # no jump where the change begins


def test_the_path_solves_its_equation() -> None:
    """The clocks' slopes between neighbouring times are those that the dynamics name."""
    encoder = moved(rtol=1e-6, atol=1e-8).double()
    assert encoder.flow is not None
    times = torch.linspace(1.0, 90.0, 200, dtype=torch.float64)
    step = 1e-4
    with torch.no_grad():
        before, here, after = (encoder.flow(times + shift)[:, 0] for shift in (-step, 0.0, step))
        slopes = (after - before) / (2 * step)
        expected = torch.stack(
            [encoder.flow.dynamics(float(t), p) for t, p in zip(times, here, strict=True)]
        )
    torch.testing.assert_close(slopes, expected, rtol=1e-3, atol=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    encoder = moved(rtol=1e-6, atol=1e-8).double()
    assert encoder.flow is not None
    times = torch.tensor([3.0, 27.7, 80.0], dtype=torch.float64)
    torch.manual_seed(3)
    target = torch.randn(3, 1, HALF, dtype=torch.float64)

    def value() -> Tensor:
        total: Tensor = (encoder(times) * target).sum()
        return total

    layers: Any = encoder.flow.dynamics
    for weight in (layers.first.weight, layers.second.weight, layers.second.bias):
        (gradient,) = torch.autograd.grad(value(), weight)
        direction, original = torch.randn_like(weight), weight.detach().clone()
        ends = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                weight.copy_(original + step * direction)
                ends.append(value())
            weight.copy_(original)
        numeric = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), numeric, rtol=1e-3, atol=1e-4)


def test_half_precision_does_not_round_the_phases() -> None:
    encoder = moved(scaling="yarn")
    low = encoder.bfloat16().table(1024)
    expected = encoder.float().table(1024)  # the same rounded weights
    assert low.dtype == torch.float32
    assert (low - expected).abs().max() < 1e-2
    assert (expected.bfloat16().float() - expected).abs().max() > 0.1  # phases in half precision


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frequencies": None}, "must be those of a rotary model, but are not set"),
        ({"length": None}, "must be those of a rotary model, but are not set"),
        ({"frequencies": (1.0, 0.5)}, "must have 24 numbers, .* but have 2"),
        ({"factor": 0.5}, "greater than or equal to 1"),
        ({"scaling": "cubic"}, "cubic"),
        ({"exact": True, "scaling": "yarn"}, 'must be "none" with `exact`'),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PhaseFlowConfig(**{"length": LENGTH, "frequencies": FREQUENCIES, **settings}).build(1, HALF)
