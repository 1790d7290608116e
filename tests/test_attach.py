"""Attachments: nothing changes when fresh, every site is where it should be, and every way of
decoding agrees.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertModel

import floater
from attach_models import ARCHITECTURES, LIMIT, PAD, SEQ2SEQ, TEXT, VOCABULARY, WIDTH, batch, make
from floater.attachments import projections, token_positions
from floater.errors import (
    ArgumentError,
    AttachmentError,
    ConfigError,
    FloaterError,
    LayoutError,
    LengthError,
)
from floater.ode import discrete

KINDS = ("input", "blocks", "qkv")
MOVING = floater.FlowConfig(zero_init=False, init_scale=1.0, initial_scale=0.7)


def logits(model: Any, inputs: dict[str, Tensor], **more: Any) -> Tensor:
    out: Tensor = model(**inputs, **more).logits
    return out


# A fresh attachment changes nothing ---------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fresh_flow_changes_nothing_to_the_bit(name: str) -> None:
    model, inputs = make(name), batch(name)
    single = {key: value[:1] for key, value in inputs.items()}
    with torch.no_grad():
        before, alone = logits(model, inputs), logits(model, single)
        with torch.autocast("cpu", torch.bfloat16):
            half = logits(model, inputs)
    state = torch.get_rng_state()
    made = floater.attach(model, floater.FlowConfig())
    assert torch.equal(torch.get_rng_state(), state)
    assert floater.attachment(model) is made
    with torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
        assert torch.equal(logits(model, single), alone)
        with torch.autocast("cpu", torch.bfloat16):
            now = logits(model, inputs)
        assert now.dtype == half.dtype
        assert torch.equal(now, half)
    model.train()
    assert torch.equal(logits(model, inputs), before)  # dropout is 0
    model.eval()
    with made.disabled(), torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
    made.detach()
    assert floater.attachment(model) is None
    with torch.no_grad():
        assert torch.equal(logits(model, inputs), before)
    assert not any("floater" in key for key in model.state_dict())


@pytest.mark.parametrize("name", [*SEQ2SEQ, "gpt2"])
def test_fresh_flow_generates_the_same_tokens(name: str) -> None:
    model = make(name)
    inputs = generation_inputs(name)
    before = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    floater.attach(model, floater.FlowConfig())
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, do_sample=False), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_disabling_and_detaching_restore_a_model_that_was_changed(name: str, kind: str) -> None:
    model, inputs = make(name), batch(name)
    with torch.no_grad():
        before = logits(model, inputs)
        keys = list(model.state_dict())
        for positions in ("keep", "replace"):
            made = floater.attach(model, MOVING, sites=kind, positions=positions)
            assert [key for key in model.state_dict() if not key.startswith("floater.")] == keys
            assert (logits(model, inputs) - before).abs().max() > 1e-3
            with made.disabled():
                assert torch.equal(logits(model, inputs), before)
            made.detach()
            assert torch.equal(logits(model, inputs), before)
            assert all(
                parameter.requires_grad
                for key, parameter in model.named_parameters()
                if "embed_pos" not in key
            )


# Every site is where it should be -----------------------------------------------------------------

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
                output(
                    f"transformer.h.{block}.attn.c_attn", own, next(site), next(site), next(site)
                )
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_site_is_where_it_should_be(name: str, kind: str) -> None:
    model, inputs = make(name).double(), batch(name)
    inputs = {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }
    made = floater.attach(model, floater.LearnedConfig(max_length=20, init_std=1.0), sites=kind)
    encoder: Any = made.encoder
    with torch.no_grad():
        encoder.weight.normal_()
        table = encoder.weight.detach().clone()
        ours = logits(model, inputs)
        made.detach()
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
    with pytest.raises(AttachmentError, match=r"has an encoder for each stack: use .encoders"):
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
    made = floater.attach(model, config, positions="replace")
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
    with torch.no_grad(), made.disabled():
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
    assert made.num_parameters() == sites * rows[type(config).__name__] + cell


def test_rotary_products_in_a_model_depend_on_distances_only() -> None:
    """With its own positions replaced by rotary ones, shifting all position ids changes nothing."""
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


# Lengths and positions ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXT)
def test_replacing_takes_the_limit_of_length_away(name: str) -> None:
    model, length = make(name), LIMIT + 23
    floater.attach(model, MOVING, positions="replace")
    inputs = batch(name, rows=2, length=length)
    with torch.no_grad():
        out = logits(model, inputs)
        assert torch.isfinite(out).all()
        if name not in SEQ2SEQ:
            cut = {key: value[:1, :12] for key, value in inputs.items()}
            assert (logits(model, cut).shape[1], out.shape[1]) == (12, length)


def test_replacing_serves_images_of_any_size() -> None:
    model = make("vit")
    floater.attach(model, MOVING, positions="replace")
    with torch.no_grad():
        assert torch.isfinite(logits(model, {"pixel_values": torch.randn(1, 3, 64, 48)})).all()


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "albert", "bart", "gpt2"])
def test_keeping_a_learned_table_keeps_its_limit_and_says_so(name: str) -> None:
    model = make(name)
    floater.attach(model, floater.FlowConfig())
    with pytest.raises(
        LengthError,
        match=rf"has {LIMIT} positions, but {LIMIT + 5} are needed; .*positions=\"replace\"",
    ):
        logits(model, batch(name, rows=1, length=LIMIT + 5))


def test_keeping_marians_sinusoid_grows_it() -> None:
    long, short = make("marian", max_position_embeddings=200), make("marian")
    short.load_state_dict(
        {k: v for k, v in long.state_dict().items() if "embed_positions" not in k}, strict=False
    )
    inputs = batch("marian", rows=2, length=90)
    with torch.no_grad():
        expected = logits(long, inputs)
        made = floater.attach(short, floater.FlowConfig())
        torch.testing.assert_close(logits(short, inputs), expected, rtol=1e-5, atol=1e-5)
        assert short.model.encoder.embed_positions.weight.shape[0] == LIMIT
        made.detach()
        with pytest.raises(IndexError):
            logits(short, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXT)
def test_a_sequence_alone_equals_itself_in_a_padded_batch(name: str, kind: str) -> None:
    model = make(name)
    floater.attach(model, MOVING, sites=kind)
    inputs = batch(name, rows=3, length=11)
    alone = {key: value[1:2] for key, value in inputs.items()}
    alone["input_ids"], alone["attention_mask"] = (
        alone["input_ids"][:, :7],
        alone["attention_mask"][:, :7],
    )
    with torch.no_grad():
        together, single = logits(model, inputs)[1:2], logits(model, alone)
    torch.testing.assert_close(together[:, : single.shape[1]], single, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("counting", ["model", "mask"])
def test_rows_padded_behind_are_looked_up_once_for_all_with_the_same_result(
    counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("roberta").double()
    made = floater.attach(model, MOVING, indices=counting)
    inputs = batch("roberta", rows=3, length=11)
    assert inputs["attention_mask"].sum(1).unique().numel() > 1
    shapes: set[int] = set()
    projected = projections._project

    def noted(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor) -> Tensor:
        shapes.add(added.dim())
        return projected(x, weight, bias, added)

    monkeypatch.setattr(projections, "_project", noted)

    def gradients_of(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out.square().sum(), list(made.parameters())))

    once = logits(model, inputs)
    assert shapes == {2}
    shapes.clear()
    with monkeypatch.context() as slow:
        slow.setattr(token_positions, "_only_behind", lambda real: False)
        by_row = logits(model, inputs)
    assert shapes == {3}
    torch.testing.assert_close(once, by_row, rtol=1e-12, atol=1e-12)  # of padding too
    for ours, theirs in zip(gradients_of(once), gradients_of(by_row), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_the_backward_copies_no_gradients_of_projections(name: str) -> None:
    model = make(name).train()
    floater.attach(model, MOVING)
    todo, seen = [logits(model, batch(name)).grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    names = {node.name() for node in seen}
    assert any(name.startswith("Addmm") for name in names)
    assert not any("CopySlices" in name for name in names)  # of what is written into a view


@pytest.mark.parametrize("where", ["behind", "in front", "between"])
def test_only_tokens_must_fit_the_own_table_not_their_padding(where: str) -> None:
    model = make("roberta")
    floater.attach(model, MOVING)
    ids = torch.randint(3, VOCABULARY, (1, 8))
    padding = torch.full((1, LIMIT), PAD)
    order = {
        "behind": (ids, padding),
        "in front": (padding, ids),
        "between": (ids[:, :5], padding, ids[:, 5:]),
    }[where]
    padded = torch.cat(order, 1)
    real = padded.ne(PAD)
    with torch.no_grad():
        alone = logits(model, {"input_ids": ids})
        together = logits(model, {"input_ids": padded, "attention_mask": real.long()})
    torch.testing.assert_close(together[real][None], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bert", "electra", "albert", "distilbert", "gpt2"])
def test_left_padding_with_position_ids(name: str, kind: str) -> None:
    model = make(name)
    floater.attach(model, MOVING, sites=kind)
    ids = torch.randint(3, VOCABULARY, (1, 7))
    padded = torch.cat((torch.full((1, 4), PAD), ids), 1)
    mask = torch.cat((torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)), 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        single = logits(model, {"input_ids": ids})
        together = logits(
            model, {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
        )
        counted = make(name)
        floater.attach(counted, MOVING, sites=kind, indices="mask")
        counted.load_state_dict(model.state_dict())
        by_mask = logits(
            counted, {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
        )
    torch.testing.assert_close(together[:, 4:], single, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(by_mask[:, 4:], single, rtol=1e-5, atol=1e-5)


def test_non_contiguous_position_ids_pick_their_own_encodings() -> None:
    model = make("bert").double()
    made = floater.attach(model, MOVING, sites="input", positions="replace")
    ids = torch.randint(3, VOCABULARY, (2, 5))
    index = torch.tensor([[0, 7, 3, 3, 21], [5, 4, 3, 2, 1]])
    encoder: Any = made.encoder
    with torch.no_grad():
        ours = logits(model, {"input_ids": ids, "position_ids": index})
        table = encoder.table(22)[:, 0]
        made.detach()
        bare = floater.attach(model, floater.NoPositionConfig(), sites="input", positions="replace")
        block = model.bert.encoder.layer[0]
        handle = block.register_forward_pre_hook(
            lambda m, args: (args[0] + table[index], *args[1:])
        )
        expected = logits(model, {"input_ids": ids})
        handle.remove()
        bare.detach()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_real_times() -> None:
    model = make("bert").double()
    made = floater.attach(model, MOVING)
    inputs = batch("bert", rows=2, length=6)
    grid = torch.arange(6, dtype=torch.float64) * made.delta
    with torch.no_grad():
        plain = logits(model, inputs)
        with made.at(grid):
            torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-9, atol=1e-9)
        with made.at(grid * 1.37):
            stretched = logits(model, inputs)
        rows = torch.stack((grid, grid * 1.37))
        with made.at(rows):
            both = logits(model, inputs)
        torch.testing.assert_close(both[0], plain[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(both[1], stretched[1], rtol=1e-9, atol=1e-9)
        assert (stretched - plain).abs().max() > 1e-3
        made.bake(10)
        with made.at(grid):
            torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-9, atol=1e-9)
        with (
            made.at(grid * 1.37),
            pytest.raises(AttachmentError, match="holds multiples of Δ only; call unbake"),
        ):
            logits(model, inputs)
        made.unbake()
        for times, message in (
            (torch.zeros(3, 6), "times for 3 sequences, but the batch holds 2"),
            (torch.arange(9.0), "was given 9 times, but the sequences hold 6 tokens"),
        ):
            with made.at(times), pytest.raises(ArgumentError, match=message):
                logits(model, inputs)


def test_real_times_of_an_encoder_decoder_through_beams() -> None:
    model = make("marian").double()
    made = floater.attach(model, MOVING)
    inputs = generation_inputs("marian", pads=False)
    source = torch.arange(8, dtype=torch.float64) * 0.23
    with torch.no_grad():
        with made.at(source=source):
            cached = model.generate(
                **inputs, num_beams=4, max_new_tokens=6, do_sample=False, use_cache=True
            )
            plain = model.generate(
                **inputs, num_beams=4, max_new_tokens=6, do_sample=False, use_cache=False
            )
        assert torch.equal(cached, plain)
        decoder = {**inputs, "decoder_input_ids": cached[:, :-1]}
        with made.at(source=source, target=torch.arange(3) * made.delta):  # the rest continues by Δ
            full = logits(model, decoder)
        with made.at(source=source):
            torch.testing.assert_close(logits(model, decoder), full, rtol=1e-9, atol=1e-9)
        assert (logits(model, decoder) - full).abs().max() > 1e-4


# Decoding -----------------------------------------------------------------------------------------


def generation_inputs(name: str, pads: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (3, 8))
    mask = torch.ones_like(ids)
    if pads and name == "gpt2":
        mask[1, :3] = 0
        ids[1, :3] = PAD
    elif pads:
        mask[1, 5:] = 0
        ids[1, 5:] = PAD
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*SEQ2SEQ, "gpt2"])
def test_decoding_step_by_step_equals_the_full_forward(name: str, kind: str) -> None:
    model = make(name).double()
    floater.attach(model, MOVING, sites=kind)
    inputs = generation_inputs(name)
    settings = {
        "max_new_tokens": 9,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with torch.no_grad():
        cached = model.generate(**inputs, use_cache=True, **settings)
        whole = model.generate(**inputs, use_cache=False, **settings)
        assert torch.equal(cached.sequences, whole.sequences)
        for step, full in zip(cached.logits, whole.logits, strict=True):
            torch.testing.assert_close(step, full, rtol=1e-6, atol=1e-6)
        settings_beams = {"num_beams": 4, "max_new_tokens": 9, "do_sample": False}
        beams = [model.generate(**inputs, use_cache=use, **settings_beams) for use in (True, False)]
        assert torch.equal(beams[0], beams[1])
        static = model.generate(**inputs, cache_implementation="static", **settings)
        assert torch.equal(static.sequences, cached.sequences)


@pytest.mark.parametrize("name", ["gpt2"])
def test_chunked_prefill_and_assisted_decoding(name: str) -> None:
    model = make(name).double()
    floater.attach(model, MOVING)
    assistant = copy.deepcopy(model)
    inputs = {key: value[:1] for key, value in generation_inputs(name).items()}
    with torch.no_grad():
        plain = model.generate(**inputs, max_new_tokens=10, do_sample=False)
        chunked = model.generate(**inputs, max_new_tokens=10, do_sample=False, prefill_chunk_size=3)
        assisted = model.generate(
            **inputs, max_new_tokens=10, do_sample=False, assistant_model=assistant
        )
    assert torch.equal(plain, chunked)
    assert torch.equal(plain, assisted)


# Gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit", "distilbert"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = make(name).double().train()
    made = floater.attach(model, MOVING)
    first, second = batch(name, length=11), batch(name, rows=2, length=7)
    inputs = [
        {k: v.double() if v.is_floating_point() else v for k, v in part.items()}
        for part in (first, second)
    ]

    def gradients() -> list[Tensor]:
        model.zero_grad()
        outs = [logits(model, part) for part in inputs]  # two forwards, then one backward
        torch.autograd.backward([out.square().mean() for out in outs])
        return [
            parameter.grad.clone() for parameter in made.parameters() if parameter.grad is not None
        ]

    plain = gradients()
    model.gradient_checkpointing_enable()
    again = gradients()
    assert len(plain) == len(again) == 5
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(
        AttachmentError, match="Re-entrant gradient checkpointing loses the gradient"
    ):
        gradients()


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_one_solve_and_one_sweep_a_micro_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = 0
    original = discrete.reverse_sweep

    def counted(*args: Any) -> Any:
        nonlocal sweeps
        sweeps += 1
        return original(*args)

    monkeypatch.setattr(discrete, "reverse_sweep", counted)
    model = make(name).train()
    made = floater.attach(model, MOVING)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    flow: Any = made.encoder
    for step in range(2):
        for _ in range(8):
            logits(model, batch(name)).square().mean().backward()
        assert (flow.solves, sweeps) == (step + 1, 8 * (step + 1))
        optimiser.step()
        optimiser.zero_grad()
    made.bake(20)
    before = flow.solves
    with torch.no_grad():
        logits(model, batch(name))
    assert flow.solves == before


def test_gradient_reaches_every_parameter_of_the_attachment() -> None:
    model = make("marian").train()
    made = floater.attach(model, MOVING)
    logits(model, batch("marian")).square().mean().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in made.parameters()
    )
    flow: Any = made.encoder
    assert bool((flow.initial.grad.abs().sum(1) > 0).all())  # every site has a say


# Baking, copying, mistakes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_baking_keeps_the_outputs_and_ends_where_it_says(name: str) -> None:
    model, inputs = make(name), batch(name)
    made = floater.attach(model, MOVING)
    with torch.no_grad():
        before = logits(model, inputs)
        made.bake(17)
        assert made.baked_length == 17
        assert torch.equal(logits(model, inputs), before)
        made.unbake()
        assert torch.equal(logits(model, inputs), before)
        made.bake(5)
        with pytest.raises(
            LengthError,
            match=r"baked to 5 positions, but \d+ are needed; call bake\(\d+\) or unbake\(\)",
        ):
            logits(model, inputs)
    with pytest.raises(ArgumentError, match="`length` must be a positive whole number, but is 0"):
        made.bake(0)


def test_a_deep_copy_lives_its_own_life() -> None:
    model, inputs = make("bert"), batch("bert")
    made = floater.attach(model, MOVING)
    with torch.no_grad():
        before = logits(model, inputs)
        twin = copy.deepcopy(model)
        other = floater.attachment(twin)
        assert other is not None
        assert other is not made
        assert torch.equal(logits(twin, inputs), before)
        flow: Any = other.encoder
        flow.initial += 1.0
        assert not torch.equal(logits(twin, inputs), before)
        assert torch.equal(logits(model, inputs), before)
        other.detach()
        assert torch.equal(logits(model, inputs), before)


def test_initialising_weights_again_leaves_the_attachment_alone() -> None:
    model = make("bert")
    made = floater.attach(model, MOVING)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(before[key], value) for key, value in made.state_dict().items())


class Unknown(nn.Module):
    def __init__(self, key_width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.block(key_width) for _ in range(2))

    def block(self, key_width: int) -> nn.Module:
        block = nn.Module()
        block.attn = nn.ModuleDict({"q": nn.Linear(WIDTH, WIDTH), "k": nn.Linear(WIDTH, key_width)})
        return block


def mistake(sites: Any = "qkv", model: Any = None, config: Any = None, **settings: Any) -> None:
    floater.attach(model or make("bert"), config or floater.FlowConfig(), sites=sites, **settings)


TARGETS = {"blocks": "layers.*", "q": "layers.*.attn.q", "k": "layers.*.attn.k"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: mistake("heads"),
            ArgumentError,
            r"`sites` must be one of 'input', 'blocks', 'qkv', but is 'heads'",
        ),
        (
            lambda: mistake(positions="drop"),
            ArgumentError,
            r"`positions` must be 'keep' or 'replace', but is 'drop'",
        ),
        (
            lambda: mistake(indices="words"),
            ArgumentError,
            r"`indices` must be 'model' or 'mask', but is 'words'",
        ),
        (
            lambda: mistake(config="flow"),
            ArgumentError,
            r"`config` must be an encoder's config such as FlowConfig\(\)",
        ),
        (
            lambda: mistake(config=make("bert")),
            ArgumentError,
            r"such as FlowConfig\(\), but is a BertForMaskedLM\.",
        ),
        (
            lambda: mistake(model="bert-base"),
            ArgumentError,
            r"`model` must be a model, such as .*, but is 'bert-base'",
        ),
        (
            lambda: mistake(model=BertModel),
            ArgumentError,
            r"`model` must be a model, such as .*, but is <class",
        ),
        (
            lambda: mistake(floater.Sites("qkv", blocks=(9,))),
            LayoutError,
            r"between 1 and 3, but contain 9",
        ),
        (lambda: mistake(floater.Sites("qkv", stacks=("cross",))), LayoutError, r"No site matches"),
        (
            lambda: floater.Sites("input", blocks=[1]),
            ConfigError,
            (
                r'`blocks` must be left out of Sites\("input"\), .* but is \(1,\); choose blocks'
                r' with Sites\("blocks", blocks=…\)'
            ),
        ),
        (
            lambda: floater.Sites("input", projections=("q",)),
            ConfigError,
            (
                r"`projections` must be left out of Sites\('input'\), .* but is \('q',\); choose"
                r" projections with Sites\(\"qkv\""
            ),
        ),
        (
            lambda: floater.Sites("blocks", projections=("q", "k")),
            ConfigError,
            r"must be left out of Sites\('blocks'\)",
        ),
        (
            lambda: floater.Sites("blocks", stacks=("encoder", "cross")),
            ConfigError,
            r"`stacks` of .* contain 'cross'",
        ),
        (
            lambda: floater.Sites("qkv", (1,)),
            ConfigError,
            r"Sites takes .* write Sites\(kind='qkv', blocks=\(1,\)\)",
        ),
        (
            lambda: floater.Sites("qkv", block=(1,)),
            ConfigError,
            r"Sites has no key `block`; did you mean `blocks`\?",
        ),
        (
            lambda: mistake("blocks", config=floater.RotaryConfig()),
            ArgumentError,
            r"turns queries and keys: sites must",
        ),
        (
            lambda: mistake(model=Unknown()),
            LayoutError,
            r"No layout .* None .*Candidates: layers.\*.attn.q, layers",
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={**TARGETS, "q": "layers.*.query"}), model=Unknown()
            ),
            LayoutError,
            (
                r"`targets\['q'\]` = 'layers.\*.query' matches no module. Candidates:"
                r" layers.\*.attn.q, layers.\*.attn.k"
            ),
        ),
        (
            lambda: mistake(floater.Sites("qkv", targets=TARGETS), model=Unknown(key_width=8)),
            LayoutError,
            (
                r"must be equally wide to share one law of motion, but attn.k of block 1 gives 8"
                r" where others give 16"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={**TARGETS, "q": "layers.*.attn"}), model=Unknown()
            ),
            LayoutError,
            (
                r"Projection attn of block 1 must be a linear layer \(with `out_features`\), but is"
                r" a ModuleDict"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets={"blocks": "layers", "q": "layers.0.attn.q"}),
                model=Unknown(),
            ),
            LayoutError,
            (
                r"`targets\['blocks'\]` = 'layers' must match blocks, but is a list of them; write"
                r" 'layers\.\*'"
            ),
        ),
        (
            lambda: mistake(
                floater.Sites("qkv", targets=TARGETS),
                model=Unknown(),
                config=floater.RotaryConfig(),
            ),
            LayoutError,
            r"The config of Unknown does not say how many heads turn \(num_attention_heads\)",
        ),
    ],
)
def test_mistakes_are_named(
    call: Callable[[], None], error: type[FloaterError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_attaching_twice_is_refused() -> None:
    model = make("bert")
    floater.attach(model, floater.FlowConfig())
    with pytest.raises(AttachmentError, match="has an attachment already"):
        floater.attach(model, floater.FlowConfig())


@pytest.mark.parametrize("kind", KINDS)
def test_attaching_to_a_model_and_to_its_base_is_refused(kind: str) -> None:
    for first, second in (("", "bert"), ("bert", "")):
        model = make("bert")
        made = floater.attach(model.get_submodule(first), MOVING, sites=kind)
        with pytest.raises(
            AttachmentError,
            match="The encoder has an attachment already, made through its base or a model around",
        ):
            floater.attach(model.get_submodule(second), MOVING, sites=kind)
        made.detach()
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


def test_only_hugging_face_models_are_saved(tmp_path: Path) -> None:
    model = Unknown()
    floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=TARGETS))
    with pytest.raises(
        AttachmentError,
        match=r"must be a Hugging Face model .*, but is a Unknown; save its state_dict\(\)",
    ):
        floater.save_pretrained(model, tmp_path)


def test_an_unknown_architecture_by_pattern() -> None:
    """GPT-2 under another name: the same numbers as by its layout."""
    known, unknown = make("gpt2"), make("gpt2")
    targets = {"blocks": "transformer.h.*", "qkv": "transformer.h.*.attn.c_attn"}
    by_layout = floater.attach(known, MOVING)
    by_name = floater.attach(unknown, MOVING, sites=floater.Sites("qkv", targets=targets))
    by_name.load_state_dict(by_layout.state_dict())
    inputs = batch("gpt2")
    flow: Any = by_name.encoder
    with torch.no_grad():
        found = logits(unknown, inputs)
        assert torch.equal(logits(known, inputs), found)
        assert (logits(make("gpt2"), inputs) - found).abs().max() > 1e-2, (
            "the encodings arrive at all"
        )
        flow.initial.copy_(flow.initial.roll(1, 0))
        assert (logits(unknown, inputs) - found).abs().max() > 1e-2, "and each at its own site"
