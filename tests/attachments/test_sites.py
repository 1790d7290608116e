"""Every site gets its own encoding, and only that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
import model_table
from floater.attachments.layouts import LAYOUTS
from floater.errors import AttachmentError

from .attach_models import (
    ARCHITECTURES,
    GROUPED,
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

BERT = tuple(f"encoder.layer.{{}}.attention.self.{part}" for part in ("query", "key", "value"))
LLAMA = tuple(f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv")


EXPECTED: dict[str, tuple[str, tuple[str, ...]]] = {  # blocks, projections in order
    **{
        name: (f"{root}.encoder.layer.{{}}", tuple(f"{root}.{path}" for path in BERT))
        for name, root in (
            ("bert", "bert"),
            ("roberta", "roberta"),
            ("xlm-roberta", "roberta"),
            ("camembert", "roberta"),
            ("electra", "electra"),
        )
    },
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3"),
        ("model.layers.{}", LLAMA),
    ),
    "distilbert": (
        "distilbert.transformer.layer.{}",
        tuple(f"distilbert.transformer.layer.{{}}.attention.{part}_lin" for part in "qkv"),
    ),
    "mpnet": (
        "mpnet.encoder.layer.{}",
        tuple(f"mpnet.encoder.layer.{{}}.attention.attn.{part}" for part in "qkv"),
    ),
    "deberta-v2": (
        "deberta.encoder.layer.{}",
        tuple(
            f"deberta.encoder.layer.{{}}.attention.self.{part}_proj"
            for part in ("query", "key", "value")
        ),
    ),
    "opt": (
        "model.decoder.layers.{}",
        tuple(f"model.decoder.layers.{{}}.self_attn.{part}_proj" for part in "qkv"),
    ),
    "vit": ("vit.layers.{}", tuple(f"vit.layers.{{}}.attention.{part}_proj" for part in "qkv")),
    "wav2vec2": (
        "wav2vec2.encoder.layers.{}",
        tuple(f"wav2vec2.encoder.layers.{{}}.attention.{part}_proj" for part in "qkv"),
    ),
}
FUSED = {  # blocks, projection
    "gpt2": ("transformer.h.{}", "attn.c_attn"),
    "phi3": ("model.layers.{}", "self_attn.qkv_proj"),
    "gpt_neox": ("gpt_neox.layers.{}", "attention.query_key_value"),
    "modernbert": ("model.layers.{}", "attn.Wqkv"),
}
TWO_STACKS = (*SEQ2SEQ, "whisper")


def head_by_head(parts: list[Tensor]) -> Tensor:
    """q, k and v of four heads, in turn."""
    return torch.stack([part.unflatten(-1, (4, -1)) for part in parts], -2).flatten(-3)


def for_each_query(encoding: Tensor) -> Tensor:
    """Two heads of k, each repeated for its two heads of q."""
    first, second = encoding.chunk(2, -1)
    return torch.cat((first, first, second, second), -1)


def reference_index(name: str, ids: Tensor | None, length: int, rows: int) -> Tensor:
    """Positions [rows, length], written out from each model's own rule."""
    if (
        name in ("roberta", "xlm-roberta", "camembert", "mpnet", "m2m_100", "opt")
        and ids is not None
    ):
        real = (ids != PAD).long()
        return (real.cumsum(1) * real - 1).clamp(min=0)
    return torch.arange(length).expand(rows, length)


@contextmanager
def reference(
    name: str, kind: str, model: Any, columns: list[Tensor], inputs: dict[str, Tensor]
) -> Iterator[None]:
    """The same encodings, added by hooks on modules that this test names itself."""
    handles: list[Any] = []
    site = iter(columns)
    ids = inputs.get("input_ids")
    rows = next(iter(inputs.values())).shape[0]
    length = 17 if ids is None else ids.shape[1]
    own = reference_index(name, ids, length, rows)

    def output(path: str, index: Tensor, *sites: Tensor) -> None:
        parts = [column[index] for column in sites]
        if name in GROUPED and (len(sites) == 3 or path.endswith("q_proj")):
            parts[0] = for_each_query(parts[0])
        added = head_by_head(parts) if name == "gpt_neox" else torch.cat(parts, -1)
        calls = iter([added])  # DeBERTa projects its relative positions with the same layers

        def add(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return out + next(calls, torch.zeros(()))

        handles.append(model.get_submodule(path).register_forward_hook(add))

    def entry(path: str, index: Tensor, column: Tensor) -> None:
        def add(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0] + column[index], *args[1:])

        handles.append(model.get_submodule(path).register_forward_pre_hook(add))

    if name in EXPECTED:
        blocks, projections = EXPECTED[name]
        for block in range(3):
            if kind == "qkv":
                for path in projections:
                    output(path.format(block), own, next(site))
            elif kind == "blocks" or block == 0:
                entry(blocks.format(block), own, next(site))
    elif name in FUSED:
        blocks, projection = FUSED[name]
        for block in range(3):
            if kind == "qkv":
                output(f"{blocks.format(block)}.{projection}", own, *(next(site) for _ in "qkv"))
            elif kind == "blocks" or block == 0:
                entry(blocks.format(block), own, next(site))
    elif name == "albert":
        albert_reference(kind, model, columns, own, handles)
    else:
        target = reference_index(
            name, inputs["decoder_input_ids"], inputs["decoder_input_ids"].shape[1], rows
        )
        root, attention, cross = "model.{}.layers.{}", "self_attn.{}_proj", "encoder_attn.{}_proj"
        if name == "t5":
            root = "{}.block.{}"
            attention, cross = "layer.0.SelfAttention.{}", "layer.1.EncDecAttention.{}"
        for stack, index in (("encoder", own), ("decoder", target)):
            for number in range(2):
                path = root.format(stack, number)
                if kind == "qkv":
                    for part in "qkv":
                        output(f"{path}.{attention.format(part)}", index, next(site))
                    for part in "qkv" if stack == "decoder" else "":
                        whose = target if part == "q" else own
                        output(f"{path}.{cross.format(part)}", whose, next(site))
                elif kind == "blocks" or number == 0:
                    entry(path, index, next(site))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def albert_reference(
    kind: str, model: Any, columns: list[Tensor], own: Tensor, handles: list[Any]
) -> None:
    """One module, called three times: calls are counted."""
    layer = model.get_submodule("albert.encoder.albert_layer_groups.0.albert_layers.0")
    calls = {"block": 0, "query": 0, "key": 0, "value": 0}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        block = calls["block"]
        calls["block"] += 1
        if kind == "blocks" or (kind == "input" and block == 0):
            return (args[0] + columns[block][own], *args[1:])
        return args

    def project(part: int, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            block = calls[name]
            calls[name] += 1
            return out + columns[3 * block + part][own]

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
    with torch.no_grad():
        weight: Any = attached.encoder.weight
        weight.normal_()
        columns = list(weight.detach().clone().unbind(1))
        ours = logits(model, inputs)
        attached.detach()
        plain = logits(model, inputs)
        with reference(name, kind, model, columns, inputs):
            expected = logits(model, inputs)
    real = inputs.get("attention_mask")
    keep = real.bool() if real is not None and name not in TWO_STACKS else slice(None)
    torch.testing.assert_close(ours[keep], expected[keep], rtol=1e-9, atol=1e-9)
    assert (ours - plain).abs().max() > 1e-2
    if len(columns) > 1:  # the test would notice two sites that are mixed up
        columns[0], columns[-1] = columns[-1], columns[0]
        with torch.no_grad(), reference(name, kind, model, columns, inputs):
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
    with pytest.raises(
        AttachmentError, match=r"has an encoder for each stack or size of its sites: use .encoders"
    ):
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


def test_the_page_of_models_is_that_of_the_table() -> None:
    assert model_table.PAGE.read_text(encoding="utf-8") == model_table.page(), (
        "run tools/model_table.py"
    )
