"""Per-sample times through `at`: batched equals alone, and gradients reach the times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import floater
from floater.encoders import EncoderConfig
from floater.errors import AttachmentError, TimesError

MOVING = floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.3)


def tiny(config: EncoderConfig, sites: str, rotary: bool = False) -> BertModel:
    settings = BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertModel(settings, add_pooling_layer=False)
    floater.attach(
        model,
        config,
        sites=sites,
        positions="replace",
        rotary=floater.RotaryConfig() if rotary else None,
    )
    model.eval()
    return model


def outputs(model: BertModel, ids: Tensor, times: Tensor, mask: Tensor | None = None) -> Tensor:
    attached = floater.attachment(model)
    assert attached is not None
    with attached.at(times):
        hidden: Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return hidden


@pytest.mark.parametrize("sites", ["input", "blocks", "qkv"])
def test_a_batch_of_irregular_times_equals_each_sample_alone(sites: str) -> None:
    model = tiny(MOVING, sites)
    lengths = [5, 9, 2]
    times = 7 * torch.rand(3, 9, dtype=torch.float64)  # in no order
    times[1, 3] = times[1, 5]  # repeated
    ids, mask = torch.randint(8, (3, 9)), torch.zeros(3, 9, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    together = outputs(model, ids, times, mask)
    for row, length in enumerate(lengths):
        alone = outputs(model, ids[row : row + 1, :length], times[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "sites", "rotary"),
    [
        (MOVING, "input", False),
        (MOVING, "qkv", False),
        (MOVING, "qkv", True),
        (floater.SinusoidalConfig(), "blocks", False),
        (floater.FourierConfig(waves=4), "qkv", False),
        (floater.RotaryConfig(), "qkv", False),
    ],
)
def test_gradients_reach_the_times_through_a_model(
    config: EncoderConfig, sites: str, rotary: bool
) -> None:
    model = tiny(config, sites, rotary).double()
    ids = torch.randint(8, (2, 4))
    times = torch.tensor(
        [[0.21, 0.9, 0.33, 0.5], [1.1, 0.4, 1.3, 0.02]], dtype=torch.float64, requires_grad=True
    )
    weights = torch.randn(2, 4, 16, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda times: (weights * outputs(model, ids, times)).sum(),
        (times,),
        rtol=1e-4,
        fast_mode=True,
    )


def test_one_row_of_times_serves_a_batch_and_keeps_its_gradient() -> None:
    model, ids = tiny(MOVING, "qkv"), torch.randint(8, (4, 5))
    row = torch.rand(5, dtype=torch.float64, requires_grad=True)
    with_gradient = outputs(model, ids, row)
    torch.testing.assert_close(with_gradient, outputs(model, ids, row.detach()))
    with_gradient.square().sum().backward()
    assert row.grad is not None
    assert bool(row.grad.ne(0).all())
    two = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)  # rows repeated for beams
    torch.testing.assert_close(
        outputs(model, ids, two), outputs(model, ids, two.detach().repeat_interleave(2, 0))
    )


def test_times_without_a_gradient_to_give_are_refused() -> None:
    ids = torch.randint(8, (1, 3))
    times = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TimesError, match="must not require gradients for the learned encoder"):
        outputs(tiny(floater.LearnedConfig(), "input"), ids, times)
    model = tiny(MOVING, "input")
    attached = floater.attachment(model)
    assert attached is not None
    attached.bake(5)
    attached.requires_grad_(False)
    with pytest.raises(AttachmentError, match=r"no gradient in the times, .* unbake\(\)"):
        outputs(model, ids, times)
