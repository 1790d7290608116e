"""PEFT adapters and quantised layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
)

import floater
from floater.errors import (
    ArgumentError,
    AttachmentError,
)

from .attach_models import MOVING, batch, logits, make

LORA: dict[str, Any] = {"r": 4, "target_modules": ["query", "value"], "lora_dropout": 0.0}


def with_lora(order: str) -> tuple[Any, Any]:
    """A model with LoRA and a flow that PEFT trains, and its inner model."""
    inner = make("bert")
    floater.attach(inner, floater.FlowConfig())
    if order == "LoRA first":  # attach again around LoRA's layers
        first = floater.attachment(inner)
        assert first is not None
        first.detach()
        peft = get_peft_model(inner, LoraConfig(**LORA))
        floater.attach(peft, floater.FlowConfig())
        attached = floater.attachment(peft)
        assert attached is not None
        attached.requires_grad_(True)
        return peft, inner
    return get_peft_model(inner, LoraConfig(**LORA, modules_to_save=["floater"])), inner


def train(model: Any, inputs: dict[str, Tensor], steps: int = 3) -> None:
    model.train()
    optimiser = torch.optim.Adam(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05
    )
    for _ in range(steps):
        optimiser.zero_grad()
        logits(model, inputs).square().mean().backward()
        optimiser.step()
    model.eval()


@pytest.mark.parametrize("order", ["flow first", "LoRA first"])
def test_a_flow_trains_beside_lora(order: str) -> None:
    inputs = batch("bert")
    plain = make("bert")
    model, inner = with_lora(order)
    attached = floater.attachment(model)
    assert attached is not None
    assert floater.attachment(inner) is attached
    with torch.no_grad():
        base = logits(plain, inputs)
        assert torch.equal(logits(model, inputs), base)  # LoRA and flow are both fresh
    train(model, inputs)
    flow: Any = attached.encoder
    assert flow.initial.grad is not None
    assert flow.initial.abs().max() > 0.01
    with torch.no_grad():
        trained = logits(model, inputs)
        with attached.disabled():
            without = logits(model, inputs)
        assert (trained - without).abs().max() > 1e-4, "the trained flow has an effect of its own"
        if order == "flow first":  # PEFT turns off what it trains: LoRA and the flow
            with model.disable_adapter():
                assert torch.equal(logits(model, inputs), base)
        merged = model.merge_and_unload()
        torch.testing.assert_close(logits(merged, inputs), trained, rtol=1e-4, atol=1e-4)
        again = floater.attachment(merged)
        assert again is not None
        assert torch.equal(again.encoder.initial, flow.initial)  # type: ignore[arg-type]
        again.detach()
        assert floater.attachment(merged) is None
        torch.testing.assert_close(logits(merged, inputs), without, rtol=1e-4, atol=1e-4)


def test_lora_and_flow_are_saved_and_come_back(tmp_path: Path) -> None:
    inputs = batch("bert")
    model, _ = with_lora("flow first")
    train(model, inputs)
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(
        AttachmentError,
        match=r"its own save_pretrained \(modules_to_save=\[\"floater\"\]\), or merged first",
    ):
        floater.save_pretrained(model, tmp_path / "x")
    with torch.no_grad():
        trained = logits(model, inputs)
        inner = make("bert")
        floater.attach(inner, floater.FlowConfig())
        back = PeftModel.from_pretrained(inner, tmp_path / "adapter").eval()
        assert torch.equal(logits(back, inputs), trained)
        merged = back.merge_and_unload()
        floater.save_pretrained(merged, tmp_path / "merged")
        whole = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "merged")
        assert torch.equal(logits(whole, inputs), logits(merged, inputs))
        torch.testing.assert_close(logits(whole, inputs), trained, rtol=1e-4, atol=1e-4)


SCALING = {
    "IA3": IA3Config(target_modules=["query", "value"], feedforward_modules=[]),
    "DoRA": LoraConfig(r=2, target_modules=["query", "value"], use_dora=True),
}


@pytest.mark.parametrize("first", ["flow", "adapter"])
@pytest.mark.parametrize("name", SCALING)
def test_adapters_that_scale_the_encoding_are_refused(name: str, first: str) -> None:
    model = make("bert")
    if first == "flow":
        floater.attach(model, MOVING)
    peft = get_peft_model(model, SCALING[name])
    if first == "adapter":
        floater.attach(peft, MOVING)
    with pytest.raises(
        AttachmentError, match=rf"{name} scales the output of projections, including the encoding"
    ):
        logits(peft, batch("bert"))
    apart = make("bert")
    floater.attach(apart, MOVING)
    config = LoraConfig(r=2, target_modules=["output.dense"], use_dora=True)
    assert torch.isfinite(logits(get_peft_model(apart, config), batch("bert"))).all()


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_dynamic:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_models_that_cannot_be_saved_whole_say_so(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    model.add_adapter(LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(
        AttachmentError,
        match=r"A model with an adapter \(model.add_adapter\) must be wrapped by PEFT",
    ):
        floater.save_pretrained(model, tmp_path / "x")
    small = torch.ao.quantization.quantize_dynamic(make("bert"), {nn.Linear}, dtype=torch.qint8)
    floater.attach(small, MOVING)
    for base in (True, False):
        with pytest.raises(
            AttachmentError, match=r"must be saved before it is quantised, but .* is packed"
        ):
            floater.save_pretrained(small, tmp_path / "x", base=base)
    assert not (tmp_path / "x").exists()


def test_adapters_inside_the_dynamics_are_refused() -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    peft = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    with pytest.raises(
        ArgumentError,
        match=r"`first` of the dynamics must be an nn.Linear, but is a peft.*exclude_modules",
    ):
        logits(peft, batch("bert"))


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_dynamic:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_quantised_projections() -> None:
    inputs = batch("bert")

    def quantised(model: Any) -> Any:
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    model = quantised(make("bert"))
    with torch.no_grad():
        before = logits(model, inputs)
        attached = floater.attach(model, floater.FlowConfig())
        assert torch.equal(logits(model, inputs), before)
        flow: Any = attached.encoder
        flow.initial += 1.0
        assert (logits(model, inputs) - before).abs().max() > 1e-3
        attached.detach()
        assert torch.equal(logits(model, inputs), before)
    model = make("bert")
    attached = floater.attach(model, MOVING)
    with torch.no_grad():
        exact = logits(model, inputs)
        with pytest.raises(
            ArgumentError,
            match=r"must be an nn.Linear, but is a torch.*dynamic.*bake the attachment before",
        ):
            logits(quantised(model), inputs)
        attached.bake(20)
        small = logits(quantised(model), inputs)
    assert (small - exact).abs().max() < 0.2 * exact.abs().max()


class PackedLinear(nn.Linear):
    """A linear layer with 8-bit weights that it unpacks in its forward, as bitsandbytes does."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((layer.weight / scale).round().to(torch.int8), False)
        self.bias = layer.bias
        self.scale = nn.Buffer(scale)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight * self.scale, self.bias)


@pytest.mark.parametrize("lora", [False, True])
def test_packed_weights_of_grouped_queries(lora: bool) -> None:
    model, inputs = make("llama"), batch("llama")
    for block in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(block.self_attn, name, PackedLinear(getattr(block.self_attn, name)))
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        model.eval()
    with torch.no_grad():
        before = logits(model, inputs)
        attached = floater.attach(model, floater.FlowConfig())
        assert torch.equal(logits(model, inputs), before)
        attached.detach()
        attached = floater.attach(model, MOVING)
        assert (logits(model, inputs) - before).abs().max() > 1e-3
    train(model, inputs)
    assert all(
        parameter.grad is not None and parameter.grad.abs().max() > 0
        for parameter in attached.parameters()
    )
