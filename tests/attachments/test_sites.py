"""Every site gets its own encoding, and only that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.attachments.layouts import LAYOUTS
from floater.errors import AttachmentError

from .attach_models import (
    ARCHITECTURES,
    MOVING,
    PAD,
    SEQ2SEQ,
    SITE_KINDS,
    VOCABULARY,
    WIDTH,
    batch,
    logits,
    make,
)

BERT = "encoder.layer.{}.attention.self."


EXPECTED: dict[str, tuple[str, tuple[str, ...]]] = {  # blocks, projections in order
    "bert": (
        "bert.encoder.layer.{}",
        tuple(f"bert.{BERT}{part}" for part in ("query", "key", "value")),
    ),
    "roberta": (
        "roberta.encoder.layer.{}",
        tuple(f"roberta.{BERT}{part}" for part in ("query", "key", "value")),
    ),
    "electra": (
        "electra.encoder.layer.{}",
        tuple(f"electra.{BERT}{part}" for part in ("query", "key", "value")),
    ),
    "distilbert": (
        "distilbert.transformer.layer.{}",
        tuple(f"distilbert.transformer.layer.{{}}.attention.{part}_lin" for part in "qkv"),
    ),
    "vit": ("vit.layers.{}", tuple(f"vit.layers.{{}}.attention.{part}_proj" for part in "qkv")),
}


EXPECTED["xlm-roberta"] = EXPECTED["roberta"]


def reference_index(name: str, ids: Tensor | None, length: int, rows: int) -> Tensor:
    """Positions [rows, length], written out from each model's own rule."""
    if name in ("roberta", "xlm-roberta", "m2m_100") and ids is not None:
        real = (ids != PAD).long()
        return (real.cumsum(1) * real - 1).clamp(min=0)
    return torch.arange(length).expand(rows, length)


@contextmanager
def reference(
    name: str, kind: str, model: Any, table: Tensor, inputs: dict[str, Tensor]
) -> Iterator[None]:
    """The same encodings, added by hooks on modules that this test names itself."""
    handles: list[Any] = []
    site = iter(range(table.shape[1]))
    ids = inputs.get("input_ids")
    rows = next(iter(inputs.values())).shape[0]
    length = 17 if name == "vit" else inputs["input_ids"].shape[1]
    own = reference_index(name, ids, length, rows)

    def output(path: str, index: Tensor, *sites: int) -> None:
        added = torch.cat([table[:, s][index] for s in sites], -1)
        module = model.get_submodule(path)
        handles.append(module.register_forward_hook(lambda m, a, out: out + added))

    def entry(path: str, index: Tensor, s: int) -> None:
        def add(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0] + table[:, s][index], *args[1:])

        handles.append(model.get_submodule(path).register_forward_pre_hook(add))

    if name in EXPECTED:
        blocks, projections = EXPECTED[name]
        for block in range(3):
            if kind == "qkv":
                for path in projections:
                    output(path.format(block), own, next(site))
            elif kind == "blocks" or block == 0:
                entry(blocks.format(block), own, next(site))
    elif name == "gpt2":
        for block in range(3):
            if kind == "qkv":
                output(f"transformer.h.{block}.attn.c_attn", own, *(next(site) for _ in "qkv"))
            elif kind == "blocks" or block == 0:
                entry(f"transformer.h.{block}", own, next(site))
    elif name == "albert":
        albert_reference(kind, model, table, own, handles)
    else:
        target = reference_index(
            name, inputs["decoder_input_ids"], inputs["decoder_input_ids"].shape[1], rows
        )
        for stack, index in (("encoder", own), ("decoder", target)):
            for block in range(2):
                root = f"model.{stack}.layers.{block}"
                if kind == "qkv":
                    for part in "qkv":
                        output(f"{root}.self_attn.{part}_proj", index, next(site))
                    if stack == "decoder":
                        output(f"{root}.encoder_attn.q_proj", target, next(site))
                        output(f"{root}.encoder_attn.k_proj", own, next(site))
                        output(f"{root}.encoder_attn.v_proj", own, next(site))
                elif kind == "blocks" or block == 0:
                    entry(root, index, next(site))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def albert_reference(kind: str, model: Any, table: Tensor, own: Tensor, handles: list[Any]) -> None:
    """One module, called three times: calls are counted."""
    layer = model.get_submodule("albert.encoder.albert_layer_groups.0.albert_layers.0")
    calls = {"block": 0, "query": 0, "key": 0, "value": 0}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        block = calls["block"]
        calls["block"] += 1
        if kind == "blocks" or (kind == "input" and block == 0):
            return (args[0] + table[:, block][own], *args[1:])
        return args

    def project(part: int, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            block = calls[name]
            calls[name] += 1
            return out + table[:, 3 * block + part][own]

        return add

    handles.append(layer.register_forward_pre_hook(enter))
    if kind == "qkv":
        for part, name in enumerate(("query", "key", "value")):
            handles.append(
                layer.get_submodule(f"attention.{name}").register_forward_hook(project(part, name))
            )


@pytest.mark.parametrize("kind", SITE_KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_site_is_where_it_should_be(name: str, kind: str) -> None:
    model, inputs = make(name).double(), batch(name)
    inputs = {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }
    attached = floater.attach(model, floater.LearnedConfig(max_length=20, init_std=1.0), sites=kind)
    encoder: Any = attached.encoder
    with torch.no_grad():
        encoder.weight.normal_()
        table = encoder.weight.detach().clone()
        ours = logits(model, inputs)
        attached.detach()
        plain = logits(model, inputs)
        with reference(name, kind, model, table, inputs):
            expected = logits(model, inputs)
        swapped = table.clone()
        swapped[:, [0, -1]] = swapped[:, [-1, 0]]
    real = inputs.get("attention_mask")
    keep = real.bool() if real is not None and name not in SEQ2SEQ else slice(None)
    torch.testing.assert_close(ours[keep], expected[keep], rtol=1e-9, atol=1e-9)
    assert (ours - plain).abs().max() > 1e-2
    if table.shape[1] > 1:  # the test would notice two sites that are mixed up
        with torch.no_grad(), reference(name, kind, model, swapped, inputs):
            assert (logits(model, inputs) - expected).abs().max() > 1e-3


def test_parts_of_the_sites() -> None:
    def sites(name: str, **settings: Any) -> int:
        model = make(name)
        return floater.attach(
            model, floater.FlowConfig(), sites=floater.Sites("qkv", **settings)
        ).num_sites

    assert sites("bert", blocks=(1,)) == 3
    assert sites("bert", projections=("q", "k")) == 6
    assert sites("marian") == 2 * 3 + 2 * 6
    assert sites("marian", stacks=("encoder",)) == 6
    assert sites("marian", stacks=("cross",), projections=("k",)) == 2
    assert sites("gpt2", projections=("v",)) == 3
    model = make("marian")
    apart = floater.attach(model, MOVING, per_stack=True)
    assert set(apart.encoders) == {"encoder", "decoder"}
    inputs = batch("marian")
    with torch.no_grad():
        before = logits(model, inputs)
        floater_flow: Any = apart.encoders["decoder"]
        floater_flow.initial += 1.0
        assert not torch.equal(logits(model, inputs), before)
        assert floater_flow.solves == 2
        assert apart.encoders["encoder"].solves == 1
    with pytest.raises(AttachmentError, match=r"has one encoder per stack: use .encoders"):
        _ = apart.encoder


@pytest.mark.parametrize(
    "config",
    [
        floater.SinusoidalConfig(block_term=True),
        floater.LearnedConfig(max_length=30),
        floater.RecurrentConfig(),
        floater.RotaryConfig(),
        floater.NoPositionConfig(),
    ],
    ids=lambda config: type(config).__name__,
)
@pytest.mark.parametrize("name", ["bert", "marian", "gpt2"])
def test_other_encoders_run_at_their_sites(name: str, config: Any) -> None:
    """Without an encoder, source tokens in another order give the same; with one, each encoder
    notices.
    """
    model, inputs = make(name).double(), batch(name, rows=1)
    if name == "gpt2":
        model.transformer.h = model.transformer.h[
            :1
        ]  # deeper, a causal model tells orders apart by itself
    with torch.no_grad():
        kept = logits(model, inputs)
    attached = floater.attach(model, config, positions="replace")
    order = torch.tensor([9, 0, 7, 1, 10, 2, 8, 3, 6, 5, 4])
    if name == "gpt2":  # of which the last token sees all others
        order = torch.tensor([9, 0, 7, 1, 8, 2, 6, 3, 5, 4, 10])
    moved = {**inputs, "input_ids": inputs["input_ids"][:, order]}
    with torch.no_grad():
        here, there = logits(model, inputs), logits(model, moved)
    if name == "bert":
        here = here[:, order]
    elif name == "gpt2":
        here, there = here[:, -1], there[:, -1]
    same = bool((there - here).abs().max() < 1e-12)
    assert same == isinstance(config, floater.NoPositionConfig)
    with torch.no_grad(), attached.disabled():
        assert torch.equal(logits(model, inputs), kept)
    rows = {
        "SinusoidalConfig": 0,
        "RotaryConfig": 0,
        "NoPositionConfig": 0,
        "LearnedConfig": 30 * WIDTH,
        "RecurrentConfig": WIDTH,
    }
    cell = (WIDTH + 1) * WIDTH + WIDTH if isinstance(config, floater.RecurrentConfig) else 0
    sites = {"bert": 9, "gpt2": 3, "marian": 18}[name]
    assert attached.num_parameters() == sites * rows[type(config).__name__] + cell


def test_rotary_products_in_a_model_depend_on_distances_only() -> None:
    """With rotary positions only, shifting all position ids changes nothing."""
    model = make("bert").double()
    floater.attach(model, floater.RotaryConfig(), positions="replace")
    ids = torch.randint(3, VOCABULARY, (2, 9))
    with torch.no_grad():
        first = logits(model, {"input_ids": ids, "position_ids": torch.arange(9).unsqueeze(0)})
        later = logits(
            model, {"input_ids": ids, "position_ids": torch.arange(100, 109).unsqueeze(0)}
        )
        stretched = logits(
            model, {"input_ids": ids, "position_ids": 3 * torch.arange(9).unsqueeze(0)}
        )
    torch.testing.assert_close(first, later, rtol=1e-7, atol=1e-7)
    assert (first - stretched).abs().max() > 1e-3


def test_every_layout_is_tested() -> None:
    assert set(ARCHITECTURES) == set(LAYOUTS)
