"""A new attachment changes nothing, and detaching or disabling restores the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.errors import (
    AttachmentError,
    LayoutError,
)

from .attach_models import (
    ARCHITECTURES,
    CAUSAL,
    MOVING,
    SEQ2SEQ,
    SITE_KINDS,
    batch,
    generation_inputs,
    logits,
    make,
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fresh_flow_changes_nothing_to_the_bit(name: str) -> None:
    model, inputs = make(name), batch(name)
    single = {key: value[:1] for key, value in inputs.items()}
    with torch.no_grad():
        before, alone = logits(model, inputs), logits(model, single)
        with torch.autocast("cpu", torch.bfloat16):
            half = logits(model, inputs)
    trained = logits(model.train(), inputs)  # dropout is 0
    model.eval()
    state = torch.get_rng_state()
    attached = floater.attach(model, floater.FlowConfig())
    assert torch.equal(torch.get_rng_state(), state)
    assert floater.attachment(model) is attached
    with torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
        assert torch.equal(logits(model, single), alone)
        with torch.autocast("cpu", torch.bfloat16):
            now = logits(model, inputs)
        assert now.dtype == half.dtype
        assert torch.equal(now, half)
    model.train()
    assert torch.equal(logits(model, inputs), trained)
    model.eval()
    with attached.disabled(), torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
    attached.detach()
    assert floater.attachment(model) is None
    with torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
    assert not any("floater" in key for key in model.state_dict())


@pytest.mark.parametrize("name", [*SEQ2SEQ, *CAUSAL])
def test_fresh_flow_generates_the_same_tokens(name: str) -> None:
    model = make(name)
    inputs = generation_inputs(name)
    before = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    floater.attach(model, floater.FlowConfig())
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, do_sample=False), before)


@pytest.mark.parametrize("kind", SITE_KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_disabling_and_detaching_restore_a_model_that_was_changed(name: str, kind: str) -> None:
    model, inputs = make(name), batch(name)
    with torch.no_grad():
        before = logits(model, inputs)
        keys = list(model.state_dict())
        for positions in ("keep", "replace"):
            attached = floater.attach(model, MOVING, sites=kind, positions=positions)
            assert [key for key in model.state_dict() if not key.startswith("floater.")] == keys
            assert (logits(model, inputs) - before).abs().max() > 1e-3
            with attached.disabled():
                assert torch.equal(logits(model, inputs), before)
            attached.detach()
            assert torch.equal(logits(model, inputs), before)
            assert all(
                parameter.requires_grad
                for key, parameter in model.named_parameters()
                if "embed_pos" not in key
            )


def test_initialising_weights_again_leaves_the_attachment_alone() -> None:
    model = make("bert")
    attached = floater.attach(model, MOVING)
    before = {key: value.clone() for key, value in attached.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(before[key], value) for key, value in attached.state_dict().items())


def test_attaching_twice_is_refused() -> None:
    model = make("bert")
    floater.attach(model, floater.FlowConfig())
    with pytest.raises(AttachmentError, match="has an attachment already"):
        floater.attach(model, floater.FlowConfig())


@pytest.mark.parametrize("kind", SITE_KINDS)
def test_attaching_to_a_model_and_to_its_base_is_refused(kind: str) -> None:
    for first, second in (("", "bert"), ("bert", "")):
        model = make("bert")
        attached = floater.attach(model.get_submodule(first), MOVING, sites=kind)
        with pytest.raises(
            AttachmentError,
            match="The encoder has an attachment already, made through its base or a model around",
        ):
            floater.attach(model.get_submodule(second), MOVING, sites=kind)
        attached.detach()
        floater.attach(model.get_submodule(second), MOVING, sites=kind)


class Product(nn.Module):
    """A projection that does not say how wide it is."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("positions", ["keep", "replace"])
def test_an_attachment_that_fails_leaves_the_model_as_it_was(positions: Any) -> None:
    model, inputs = make("bert"), batch("bert")
    attention = model.bert.encoder.layer[2].attention.self
    attention.value = Product(attention.value)
    with torch.no_grad():
        before = logits(model, inputs)
        with pytest.raises(
            LayoutError, match=r"Projection .*block 3.* must be a linear layer .*, but is a Product"
        ):
            floater.attach(model, MOVING, positions=positions)
        assert torch.equal(logits(model, inputs), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert type(model.bert.encoder.layer[0].attention.self.query) is nn.Linear
