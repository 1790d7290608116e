"""A step of generation: one token per row, whose encodings are looked up for all blocks at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import floater
from floater.attachments.projections import PositionedLinear, equip
from floater.attachments.slot import StepVectors
from floater.attachments.stack_encodings import StackEncodings

from .attach_models import GROUPED, MOVING, batch, make

SEPARATE = tuple(name for name in GROUPED if name != "phi3")
"""Models whose q, k and v are projections of their own."""


def step(model: Any, cache: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of one more token per row."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
    return logits


def after_prompt(model: Any, ids: torch.Tensor) -> Any:
    cache = DynamicCache(config=model.config)
    step(model, cache, ids)
    return cache


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("name", SEPARATE)
def test_a_step_equals_the_full_forward(
    name: str, baked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name).double()
    attached = floater.attach(model, MOVING)
    if baked:
        attached.bake(20)
    ids = batch(name)["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids).logits
    cache = after_prompt(model, ids[:, :5])
    monkeypatch.setattr(StackEncodings, "fill_slot", None)  # nothing is looked up block by block
    for place in range(5, ids.shape[1]):
        found = step(model, cache, ids[:, place : place + 1])[:, 0]
        torch.testing.assert_close(found, whole[:, place], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SEPARATE)
def test_a_step_of_a_fresh_flow_is_unchanged_to_the_bit(name: str) -> None:
    plain = make(name)
    model = copy.deepcopy(plain)
    floater.attach(model, floater.FlowConfig())
    ids = batch(name)["input_ids"]
    caches = [after_prompt(each, ids[:, :-1]) for each in (plain, model)]
    plain_logits, logits = (
        step(each, cache, ids[:, -1:]) for each, cache in zip((plain, model), caches, strict=True)
    )
    assert torch.equal(plain_logits, logits)


def test_rows_at_different_positions_do_not_share_encodings() -> None:
    model = make("llama").double()
    floater.attach(model, MOVING)
    ids = batch("llama")["input_ids"][:2]
    places = torch.tensor([[5], [7]])
    with torch.no_grad():
        both = model(input_ids=ids[:, :1], position_ids=places).logits
        for row in range(2):
            alone = model(input_ids=ids[row : row + 1, :1], position_ids=places[row : row + 1])
            torch.testing.assert_close(both[row : row + 1], alone.logits, rtol=1e-9, atol=1e-9)


def test_half_precision_takes_the_encodings_too() -> None:
    model = make("llama")
    floater.attach(model, MOVING)
    ids = batch("llama")["input_ids"]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        whole = model(input_ids=ids).logits
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True)
        last = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(last[:, 0].float(), whole[:, -1].float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("bias", [False, True])
def test_a_vector_is_added_to_the_projection(bias: bool) -> None:
    layer = nn.Linear(32, 16, bias=bias)
    x, vector = torch.randn(3, 1, 32), torch.randn(16)
    with torch.no_grad():
        plain = layer(x)
        equip(layer)
        assert isinstance(layer, PositionedLinear)
        step = StepVectors()
        layer.slot.join(step, 1)
        step.vectors = [vector, torch.zeros(16)]
        assert torch.equal(layer(x), plain)
        assert step.vectors[0] is vector
        for given in (vector, vector.double()):  # of another type: converted
            step.vectors = [None, given]
            torch.testing.assert_close(layer(x), plain + vector)
        assert torch.equal(layer(x), plain)  # a vector is used once


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_step(model: Any, ids: torch.Tensor) -> int:
    cache = after_prompt(model, ids[:, :-1])
    counted = _Operations()
    with counted:
        step(model, cache, ids[:, -1:])
    return counted.count


def test_the_operations_that_a_step_adds_do_not_depend_on_the_number_of_blocks() -> None:
    ids = batch("llama")["input_ids"]
    added = []
    for blocks in (2, 6):
        plain = make("llama", num_hidden_layers=blocks)
        model = copy.deepcopy(plain)
        floater.attach(model, MOVING).bake(20)
        added.append(operations_of_a_step(model, ids) - operations_of_a_step(plain, ids))
    assert added[0] == added[1] <= 16


def test_a_block_that_is_called_twice_gets_its_encodings_twice() -> None:
    model = make("llama").double()
    floater.attach(model, MOVING)
    layers = list(model.model.layers)
    model.model.layers = nn.ModuleList([*layers, layers[0]])
    ids = batch("llama")["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits[:, 0]
        first = model(input_ids=ids[:, :1], use_cache=False).logits[:, 0]
    torch.testing.assert_close(first, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["llama", "bert", "mpnet"])
def test_an_interrupted_forward_pass_leaves_nothing_behind(name: str) -> None:
    plain = make(name)
    model = copy.deepcopy(plain)
    attached = floater.extend(model, 80, scaling="yarn" if name == "llama" else "linear")
    inputs = batch(name)
    blocks = model.model.layers if name == "llama" else getattr(model, name).encoder.layer

    def interrupt(module: Any, args: Any) -> None:
        raise KeyboardInterrupt

    handle = blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model(**inputs)
    handle.remove()
    with torch.no_grad(), attached.disabled():
        assert torch.equal(model(**inputs).logits, plain(**inputs).logits)


@pytest.mark.slow
@pytest.mark.parametrize("baked", [False, True])
def test_compiled_blocks_take_the_encodings_of_a_step(baked: bool) -> None:
    """The first block runs without a graph and fills the slots of all; the others are graphs."""
    model = make("llama")
    attached = floater.attach(model, MOVING)
    if baked:
        attached.bake(20)
    ids = batch("llama")["input_ids"]
    cache = after_prompt(model, ids[:, :-1])
    expected = step(model, cache, ids[:, -1:])
    for block in model.model.layers[1:]:
        block.compile(backend="eager")
    for _ in range(2):  # blocks compile for prompts and for steps
        cache = after_prompt(model, ids[:, :-1])
        torch.testing.assert_close(step(model, cache, ids[:, -1:]), expected, rtol=1e-5, atol=1e-5)
