"""Rotary models, grouped queries, relative positions, fused heads, and encoders side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DebertaConfig,
    DebertaModel,
    FalconConfig,
    FalconForCausalLM,
)
from transformers.models.mpnet.modeling_mpnet import create_position_ids_from_input_ids

import floater
from floater.attachments.layouts import LAYOUTS
from floater.attachments.projections import PositionedLinear, ProjectionInput, equip
from floater.errors import ArgumentError, AttachmentError, LayoutError

from .attach_models import (
    ARCHITECTURES,
    CAUSAL,
    GROUPED,
    MOVING,
    PAD,
    SEQ2SEQ,
    TEXT,
    VOCABULARY,
    batch,
    logits,
    make,
)

ENCODERS = tuple(name for name in TEXT if name not in (*SEQ2SEQ, *CAUSAL))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, inputs = make(name), batch(name)
    floater.attach(model, MOVING, positions="replace")
    floater.save_pretrained(model, tmp_path)
    again = floater.from_pretrained(type(model), tmp_path)
    with torch.no_grad():
        assert torch.equal(logits(again, inputs), logits(model, inputs))


@pytest.mark.parametrize("name", [*ENCODERS, *CAUSAL, "t5"])
def test_replaced_positions_are_gone(name: str) -> None:
    """Without positions, an encoder gives each token the same output in any order, and the last
    token of a causal model of one layer does not notice the order of the others.
    """
    model, inputs = make(name).double(), batch(name, rows=1)
    blocks: Any = model
    if name in CAUSAL:
        stack = LAYOUTS[name].stacks["decoder"]
        blocks = model.base_model.get_submodule(stack.path or "")
        blocks = blocks.get_submodule(stack.blocks.removesuffix(".*"))
        del blocks[1:]
        model.config.num_hidden_layers = 1
    order = torch.tensor([9, 0, 7, 1, 8, 2, 6, 3, 5, 4, 10])
    moved = {**inputs, "input_ids": inputs["input_ids"][:, order]}

    def outputs() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            here, there = logits(model, inputs), logits(model, moved)
        if name in ENCODERS:
            here = here[:, order]
        return (here[:, -1], there[:, -1]) if name in CAUSAL else (here, there)

    if name not in ("gemma2", "gemma3_text", "modernbert"):  # they also look into a window
        attached = floater.attach(model, floater.NoPositionConfig(), positions="keep")
        here, there = outputs()
        assert (there - here).abs().max() > 1e-6
        attached.detach()
    elif name == "modernbert":
        model.config.local_attention = 1000
        model = type(model)(type(model.config)(**{**model.config.to_dict(), "local_attention": 90}))
        model = model.double().eval()
    attached = floater.attach(model, floater.NoPositionConfig(), positions="replace")
    here, there = outputs()
    if not name.startswith("gemma"):
        torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-9)
    floater_free = [
        key
        for key, parameter in model.named_parameters()
        if not parameter.requires_grad and "embed_pos" not in key
    ]
    attached.detach()
    assert all(model.get_parameter(key).requires_grad for key in floater_free)


def test_unused_weights_of_relative_positions_get_no_gradient() -> None:
    for name, unused in (
        ("t5", "relative_attention_bias"),
        ("mpnet", "relative_attention_bias"),
        ("deberta-v2", "rel_embeddings"),
    ):
        model, inputs = make(name), batch(name)
        floater.attach(model, MOVING, positions="replace")
        logits(model.train(), inputs).square().mean().backward()
        for key, parameter in model.named_parameters():
            if unused in key:
                assert not parameter.requires_grad, key
            elif parameter.requires_grad and "pooler" not in key:
                assert parameter.grad is not None, key


# Grouped queries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_queries_share_one_dynamics_with_keys_and_values(name: str) -> None:
    model = make(name)
    attached = floater.attach(model, MOVING)
    size = 16 if name.startswith("gemma") else 8
    encoder: Any = attached.encoder
    assert (encoder.sites, encoder.dim) == (9, size)
    tables = attached.site_tables(7)
    assert tables is not None
    assert tables.shape == (7, 9, size)
    names = attached.site_names()
    assert names[:3] == ["decoder block 1 q", "decoder block 1 k", "decoder block 1 v"]
    attached.bake(12)
    assert attached.baked_tables()["all"].shape == (12, 9, size)


class Wider(nn.Module):
    """An unknown model whose keys are narrower than its queries, and nothing says why."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"q": nn.Linear(4, 6), "k": nn.Linear(4, 3)})])


def test_sites_of_several_sizes_have_dynamics_each() -> None:
    targets = {"blocks": "layers.*", "q": "layers.*.q", "k": "layers.*.k"}
    attached = floater.attach(Wider(), MOVING, sites=floater.Sites("qkv", targets=targets))
    assert list(attached.encoders) == ["all_3", "all_6"]
    tables = attached.site_tables(5)
    assert tables is not None
    assert tables.shape == (5, 2, 6)
    assert not tables[:, 1, 3:].any()
    assert tables[1:, 1, :3].abs().min() > 0
    attached.bake(4)
    assert {key: tuple(table.shape) for key, table in attached.baked_tables().items()} == {
        "all_3": (4, 1, 3),
        "all_6": (4, 1, 6),
    }


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_fused_product_equals_the_layer_to_the_bit(bias: bool, gradient: bool) -> None:
    """Also without a bias, where it adds the encodings in the same pass over the activations."""
    torch.manual_seed(0)
    for rows, length, inside, outside in ((1, 1, 64, 32), (2, 7, 300, 96), (8, 128, 576, 192)):
        layer = nn.Linear(inside, outside, bias=bias)
        x = torch.randn(rows, length, inside)
        with torch.set_grad_enabled(gradient):
            plain = layer(x)
            equip(layer)
            assert isinstance(layer, PositionedLinear)
            for shape in ((length, outside), (rows, length, outside)):
                layer.slot.put(ProjectionInput(torch.zeros(shape)))
                assert torch.equal(layer(x), plain)
                added = torch.randn(shape)
                kept = added.clone()
                layer.slot.put(ProjectionInput(added))
                torch.testing.assert_close(layer(x), plain + kept, rtol=1e-5, atol=1e-5)
                assert torch.equal(added, kept)  # the encodings themselves are left alone


# Rotary and additive encoders together ------------------------------------------------------------


@contextmanager
def rotated_by_hand(model: Any, name: str, table: Tensor | None, sites: int) -> Iterator[None]:
    """Encodings added to q, k and v, then q and k rotated, by hooks that this test writes out."""
    handles = []
    paths = {
        "bert": "bert.encoder.layer.{}.attention.self.{}",
        "gpt2": "transformer.h.{}.attn.c_attn",
    }
    half = torch.arange(4, dtype=torch.float64)  # heads of size 8
    angle = torch.arange(11, dtype=torch.float64)[:, None] * 10_000 ** (-half / 4)

    def turn(x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 2, 4))
        pair = torch.complex(heads[..., 0, :], heads[..., 1, :])
        turned = pair * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.stack((turned.real, turned.imag), -2).flatten(-3)

    def hook(part: int, site: int) -> Any:
        def change(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            parts = list(out.chunk(3, -1)) if name == "gpt2" else [out]
            for offset, letter in enumerate(range(3) if name == "gpt2" else [part]):
                if table is not None:
                    parts[offset] = parts[offset] + table[:11, site + offset]
                if letter < 2:
                    parts[offset] = turn(parts[offset])
            return torch.cat(parts, -1)

        return change

    site = 0
    for block in range(3):
        for part, word in enumerate(("query", "key", "value") if name == "bert" else ("",)):
            module = model.get_submodule(paths[name].format(block, word))
            handles.append(module.register_forward_hook(hook(part, site)))
            site += sites if name == "gpt2" else 1
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_what_a_flow_adds_is_rotated_with_the_projection(name: str) -> None:
    model, inputs = make(name).double(), batch(name, rows=1)
    attached = floater.attach(model, MOVING, rotary=floater.RotaryConfig(), positions="replace")
    with torch.no_grad():
        ours = logits(model, inputs)
        table = attached.site_tables(11)
        attached.detach()
        floater.attach(model, floater.NoPositionConfig(), positions="replace")
        with rotated_by_hand(model, name, table, 3):
            expected = logits(model, inputs)
        with rotated_by_hand(model, name, None, 3):
            rotary_alone = logits(model, inputs)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    assert (ours - rotary_alone).abs().max() > 1e-3


@pytest.mark.parametrize("sites", ["input", "blocks", "qkv"])
@pytest.mark.parametrize("name", ["bert", "marian", "llama", "phi3", "gpt_neox", "modernbert"])
def test_a_fresh_flow_leaves_rotary_positions_as_they_are(name: str, sites: str) -> None:
    model, inputs = make(name), batch(name)
    rotary = floater.RotaryConfig()
    alone = floater.attach(model, rotary, positions="replace")
    with torch.no_grad():
        before = logits(model, inputs)
        alone.detach()
        both = floater.attach(
            model, floater.FlowConfig(), rotary=rotary, sites=sites, positions="replace"
        )
        assert torch.equal(logits(model, inputs), before)
        both.detach()
        moving = floater.attach(model, MOVING, rotary=rotary, sites=sites, positions="replace")
        after = logits(model, inputs)
        assert (after - before).abs().max() > 1e-3
        moving.bake(30)
        assert torch.equal(logits(model, inputs), after)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt_neox", "modernbert"])
def test_our_rotary_encoder_equals_the_models_own(name: str) -> None:
    """With the same base, whether q, k and v are apart, fused in parts or head by head."""
    changes: dict[str, Any] = {}
    if name == "gpt_neox":
        changes = {"rotary_pct": 1.0}
    if name == "modernbert":
        kind = {"rope_type": "default", "rope_theta": 10_000.0}
        changes = {"rope_parameters": {"sliding_attention": kind, "full_attention": kind}}
    model, inputs = make(name, **changes).double(), batch(name)
    with torch.no_grad():
        before = logits(model, inputs)
        floater.attach(model, floater.RotaryConfig(), positions="replace")
        torch.testing.assert_close(logits(model, inputs), before, rtol=1e-5, atol=1e-5)


def test_rotary_and_flow_take_the_same_times() -> None:
    """Positions that only the times can tell apart reach both."""
    model, inputs = make("bert").double(), batch("bert", rows=1)
    attached = floater.attach(model, MOVING, rotary=floater.RotaryConfig(), positions="replace")
    times = 0.1 * torch.arange(11, dtype=torch.float64)
    with torch.no_grad():
        plain = logits(model, inputs)
        with attached.at(times):
            torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-9, atol=1e-9)
        with attached.at(1.7 * times):
            stretched = logits(model, inputs)
        attached.detach()
        flow = floater.attach(model, MOVING, positions="replace")
        with flow.at(1.7 * times):
            assert (logits(model, inputs) - stretched).abs().max() > 1e-3
    assert (stretched - plain).abs().max() > 1e-3


def test_rotary_and_flow_are_saved_together(tmp_path: Path) -> None:
    model, inputs = make("marian"), batch("marian")
    rotary = floater.RotaryConfig(base=500.0)
    attached = floater.attach(model, MOVING, rotary=rotary, positions="replace")
    attached.bake(30)
    floater.save_pretrained(model, tmp_path)
    again: Any = floater.from_pretrained(type(model), tmp_path)
    loaded = floater.attachment(again)
    assert loaded is not None
    assert loaded.rotary_config == rotary
    assert loaded.baked_length == 30
    with torch.no_grad():
        assert torch.equal(logits(again, inputs), logits(model, inputs))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "bert",
            {"config": floater.RotaryConfig(), "rotary": floater.RotaryConfig()},
            "`rotary` must be left out where `config` is a RotaryConfig itself",
        ),
        (
            "bert",
            {"rotary": floater.RotaryConfig(delta=0.5)},
            "`rotary` must have the Δ of the other encoder, 0.1, but has 0.5",
        ),
        ("bert", {"rotary": True}, "`rotary` must be a RotaryConfig or None, but is True"),
        (
            "llama",
            {"rotary": floater.RotaryConfig()},
            'needs positions="replace" in a model that is rotary itself',
        ),
        (
            "qwen3",
            {"config": floater.RotaryConfig(), "positions": "replace"},
            "after their normalisation, but the projections of this architecture come before it",
        ),
    ],
)
def test_rotary_encoders_that_do_not_fit_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    model = make(name)
    with pytest.raises(ArgumentError, match=message):
        floater.attach(model, **{"config": floater.FlowConfig(), **settings})


# Other layouts, other layers ----------------------------------------------------------------------


def fused_models() -> dict[str, tuple[Any, str]]:
    falcon: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "pad_token_id": PAD,
    }
    return {
        "bloom": (
            BloomForCausalLM(
                BloomConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=16,
                    n_layer=2,
                    n_head=4,
                    hidden_dropout=0.0,
                    attention_dropout=0.0,
                    pad_token_id=PAD,
                )
            ),
            "stack",
        ),
        "deberta": (
            DebertaModel(
                DebertaConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=16,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    intermediate_size=32,
                    pad_token_id=PAD,
                )
            ),
            "stack",
        ),
        "falcon": (
            FalconForCausalLM(
                FalconConfig(**falcon, multi_query=False, new_decoder_architecture=False)
            ),
            "stack",
        ),
        "falcon multi-query": (
            FalconForCausalLM(
                FalconConfig(**falcon, multi_query=True, new_decoder_architecture=False)
            ),
            "queries first",
        ),
        "falcon grouped": (
            FalconForCausalLM(
                FalconConfig(**falcon, new_decoder_architecture=True, num_kv_heads=2)
            ),
            "groups",
        ),
    }


@pytest.mark.parametrize("name", fused_models())
def test_fused_projections_head_by_head(name: str) -> None:
    model, order = fused_models()[name]
    model = model.double().eval()
    ids = {"input_ids": torch.randint(3, VOCABULARY, (2, 9))}
    targets = {
        "blocks": "transformer.h.*",
        "qkv": "transformer.h.*.self_attention.query_key_value",
    }
    if name == "deberta":
        blocks = "encoder.layer.*"
        targets = {"blocks": blocks, "qkv": f"{blocks}.attention.self.in_proj"}
    attached = floater.attach(
        model, floater.LearnedConfig(max_length=9), sites=floater.Sites("qkv", targets=targets)
    )
    keys = {"stack": 4, "queries first": 1, "groups": 2}[order]
    with torch.no_grad():
        weight: Any = attached.encoder.weight
        weight.normal_()
        columns = iter(weight.detach().clone().unbind(1))
        ours = logits(model, ids)
        attached.detach()
        for block in range(2):
            q, k, v = (next(columns).view(9, keys, 4) for _ in range(3))
            q = torch.stack([q[:, head * keys // 4] for head in range(4)], 1)
            if order == "queries first":
                rows = [q, k, v]
            else:
                each = 4 // keys
                rows = [
                    part
                    for key in range(keys)
                    for part in (q[:, key * each : (key + 1) * each], k[:, [key]], v[:, [key]])
                ]
            added = torch.cat(rows, 1).flatten(1)
            layer = model.get_submodule(targets["qkv"].replace("*", str(block)))
            layer.register_forward_hook(lambda m, a, out, added=added: out + added)
        torch.testing.assert_close(ours, logits(model, ids), rtol=1e-9, atol=1e-9)


def spread(model: Any, how: str, folder: Path) -> None:
    """Let accelerate place a model: it puts forwards of its own into layers, and may keep weights
    elsewhere.
    """
    if how == "cpu offload":
        cpu_offload(model, torch.device("cpu"))
    elif how == "disk offload":
        disk_offload(model, str(folder), torch.device("cpu"))
    else:
        dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True)


@pytest.mark.parametrize("how", ["dispatched", "cpu offload", "disk offload"])
@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "mpnet"])
def test_models_on_several_devices(name: str, how: str, tmp_path: Path) -> None:
    model, inputs = make(name), batch(name)
    with torch.no_grad():
        before = logits(model, inputs)
        torch.manual_seed(7)
        attached = floater.attach(model, MOVING, positions="replace")
        expected = logits(model, inputs)
        if how == "dispatched":
            spread(model, how, tmp_path)
            torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-5, atol=1e-5)
        attached.detach()
        if how != "dispatched":
            spread(model, how, tmp_path)
        torch.manual_seed(7)
        attached = floater.attach(model, MOVING, positions="replace")
        torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-5, atol=1e-5)
        with attached.disabled():
            torch.testing.assert_close(logits(model, inputs), before, rtol=1e-5, atol=1e-5)
        attached.detach()
        torch.testing.assert_close(logits(model, inputs), before, rtol=1e-5, atol=1e-5)


def test_an_attachment_that_is_offloaded_with_its_model_says_so() -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    spread(model, "cpu offload", Path())
    with pytest.raises(AttachmentError, match="are offloaded with those of the model; attach aft"):
        logits(model, batch("bert"))


def test_a_forward_that_a_change_of_class_would_not_reach() -> None:
    """A projection gets its encoding all the same; a position table is refused."""
    model, inputs = make("bert"), batch("bert")
    table = model.bert.embeddings.position_embeddings
    query = model.bert.encoder.layer[0].attention.self.query
    with torch.no_grad():
        torch.manual_seed(7)
        attached = floater.attach(model, MOVING)
        expected = logits(model, inputs)
        attached.detach()
        query.forward = lambda x: nn.functional.linear(x, query.weight, query.bias)
        torch.manual_seed(7)
        attached = floater.attach(model, MOVING)
        torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-5, atol=1e-5)
        attached.detach()
    table.forward = lambda ids: nn.functional.embedding(ids, table.weight)
    with pytest.raises(AttachmentError, match="must have the forward of its class Embedding, but"):
        floater.attach(model, MOVING, positions="replace")


def test_images_of_any_size_keep_their_positions() -> None:
    """ViT interpolates its own; the flow numbers the patches that there are."""
    model = make("vit")
    large = {"pixel_values": torch.randn(2, 3, 48, 64)}
    with torch.no_grad():
        before = logits(model, large, interpolate_pos_encoding=True)
        attached = floater.attach(model, floater.FlowConfig())
        assert torch.equal(logits(model, large, interpolate_pos_encoding=True), before)
        attached.detach()
        floater.attach(model, MOVING)
        assert (logits(model, large, interpolate_pos_encoding=True) - before).abs().max() > 1e-3


# Combinations that went wrong once ----------------------------------------------------------------


@pytest.mark.parametrize("first", ["rotary", "adapter"])
def test_adapters_around_rotated_projections_are_refused(first: str) -> None:
    """What LoRA adds to q would not be rotated, but merged weights would."""
    model, inputs = make("bert"), batch("bert")
    lora = LoraConfig(r=2, target_modules=["query"])
    if first == "rotary":
        floater.attach(model, floater.FlowConfig(), rotary=floater.RotaryConfig())
    peft = get_peft_model(model, lora)
    if first == "adapter":
        floater.attach(peft, floater.FlowConfig(), rotary=floater.RotaryConfig())
    with pytest.raises(AttachmentError, match="not what an adapter around them adds to it"):
        logits(peft, inputs)
    values = make("bert")
    floater.attach(values, floater.FlowConfig(), rotary=floater.RotaryConfig())
    peft = get_peft_model(values, LoraConfig(r=2, target_modules=["value"]))
    assert torch.isfinite(logits(peft, inputs)).all()


def test_stacks_with_heads_of_different_sizes_cannot_share_a_rotary_encoder() -> None:
    model = make("bart", decoder_attention_heads=4)
    with pytest.raises(LayoutError, match="but they have 8 in the encoder and 4 in the decoder"):
        floater.attach(model, floater.RotaryConfig(), positions="replace")


@pytest.mark.parametrize(
    ("name", "message"),
    [("llama", "rotary itself, but `positions` is"), ("qwen3", "after their normalisation")],
)
def test_patterns_do_not_bypass_what_rotary_encoders_need(name: str, message: str) -> None:
    block = "model.layers.*"
    targets = {"blocks": block, **{k: f"{block}.self_attn.{k}_proj" for k in "qkv"}}
    with pytest.raises(ArgumentError, match=message):
        floater.attach(
            make(name), floater.RotaryConfig(), sites=floater.Sites("qkv", targets=targets)
        )


@pytest.mark.parametrize("name", ["wav2vec2", "opt"])
def test_the_input_keeps_its_encoding_where_layers_are_dropped(name: str) -> None:
    model, inputs = make(name), batch(name, rows=1)
    attached = floater.attach(model, MOVING, sites="input", positions="replace")
    dropped: Any = model.config if name == "wav2vec2" else model.model.decoder
    dropped.layerdrop = 0.5
    model.train()
    entered: list[Tensor] = []
    blocks = model.wav2vec2.encoder.layers if name == "wav2vec2" else model.model.decoder.layers
    for block in blocks:
        block.register_forward_pre_hook(lambda module, args: entered.append(args[0].detach()))
    table = attached.site_tables(20)
    assert table is not None
    differences = []
    for seed in range(8):
        states = []
        for enabled in (True, False):
            torch.manual_seed(seed)
            entered.clear()
            if enabled:
                logits(model, inputs)
            else:
                with attached.disabled():
                    logits(model, inputs)
            states.append(entered[0] if entered else None)
        if states[0] is not None and states[1] is not None and name == "opt":
            with torch.no_grad():
                own = model.model.decoder.embed_positions.weight[2:13]
            differences.append(states[0] - states[1] + own - table[:11, 0])
        elif states[0] is not None and states[1] is not None:
            differences.append((states[0] - states[1]).abs().max() > 1e-3)
    assert len(differences) > 3
    if name == "opt":
        assert max(float(difference.abs().max()) for difference in differences) < 1e-5
    else:
        assert all(differences)


def test_mpnet_counts_its_own_padding_id_whatever_its_config_says() -> None:
    model = make("mpnet", pad_token_id=0)
    ids = torch.tensor([[5, 6, 7, 1, 8, 0, 9, 10]])
    attached = floater.attach(model, floater.LearnedConfig(max_length=9), sites="input")
    seen: list[Tensor] = []
    model.mpnet.encoder.layer[0].register_forward_pre_hook(
        lambda module, args: seen.append(args[0].detach())
    )
    encoder: Any = attached.encoder
    with torch.no_grad():
        encoder.weight.normal_()
        logits(model, {"input_ids": ids})
        with attached.disabled():
            logits(model, {"input_ids": ids})
    places = torch.cdist((seen[0] - seen[1])[0], encoder.weight[:, 0]).argmin(1)
    own = create_position_ids_from_input_ids(ids, 1)[0] - 2
    real = ids[0] != 1
    assert torch.equal(places[real], own[real])


@pytest.mark.slow
def test_models_that_are_not_baked_compile_for_any_length() -> None:
    for name in ("bert", "llama"):
        model = make(name)
        floater.attach(model, MOVING)
        torch._dynamo.reset()
        compiled: Any = torch.compile(model, backend="eager")
        with torch.no_grad():
            for length in (10, 17, 23):
                inputs = batch(name, rows=2, length=length)
                torch.testing.assert_close(
                    compiled(**inputs).logits, model(**inputs).logits, rtol=1e-5, atol=1e-5
                )
