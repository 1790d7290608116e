"""Relative positions in whole models: through transformers' attention interface, caches, masks."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, BertForMaskedLM, MarianMTModel

import floater
from floater.attachments.layouts import LAYOUTS
from floater.encoders import DistanceVectors
from floater.errors import ArgumentError, AttachmentError
from relative_reference import written_out

from .attach_models import (
    ARCHITECTURES,
    CAUSAL,
    PAD,
    SEQ2SEQ,
    VOCABULARY,
    batch,
    check_decoding,
    generation_inputs,
    logits,
    make,
)

SERVED = [name for name in ARCHITECTURES if LAYOUTS[name].plain_attention]
NEAR = floater.RelativeConfig(distance=2, init_std=1.0)
"""Large vectors, and inputs that are longer than their reach."""


def by_hand(model: Any, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """The hidden states of a Marian model with one block per stack, whose own positions are
    replaced: everything but matrix products and norms written out.
    """
    base: Any = model.model
    encoder: Any = model.floater.encoder
    vectors = [
        DistanceVectors(keys, values)
        for keys, values in zip(encoder.keys, encoder.values, strict=True)
    ]
    none = DistanceVectors(torch.zeros_like(encoder.keys[0]), torch.zeros_like(encoder.values[0]))

    def attention(
        layer: Any, states: Tensor, others: Tensor, found: DistanceVectors, allowed: Tensor
    ) -> Tensor:
        heads = [
            part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
            for part in (layer.q_proj(states), layer.k_proj(others), layer.v_proj(others))
        ]
        query, key, value = heads
        out = written_out(query, key, value, found, 0, allowed)
        return layer.out_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def feed_forward(block: Any, states: Tensor) -> Tensor:
        out = block.fc2(block.activation_fn(block.fc1(states)))
        return block.final_layer_norm(states + out)  # type: ignore[no-any-return]

    def embedded(stack: Any, ids: Tensor) -> Tensor:
        return stack.embed_tokens(ids) * stack.embed_scale  # type: ignore[no-any-return]

    (first,), (second,) = base.encoder.layers, base.decoder.layers
    seen = mask.bool().unsqueeze(1)
    states = embedded(base.encoder, source)
    allowed = seen.expand(-1, source.shape[1], -1)
    out = attention(first.self_attn, states, states, vectors[0], allowed)
    states = feed_forward(first, first.self_attn_layer_norm(states + out))
    hidden = embedded(base.decoder, target)
    length = target.shape[1]
    causal = torch.ones(length, length).tril().bool().expand(len(target), -1, -1)
    out = attention(second.self_attn, hidden, hidden, vectors[1], causal)
    hidden = second.self_attn_layer_norm(hidden + out)
    out = attention(second.encoder_attn, hidden, states, none, seen.expand(-1, length, -1))
    return feed_forward(second, second.encoder_attn_layer_norm(hidden + out))


def test_a_translator_is_the_one_written_out_by_hand_with_its_gradients() -> None:
    """In the self-attention of both stacks, and nowhere in cross-attention."""
    model = make("marian", encoder_layers=1, decoder_layers=1, scale_embedding=True).double()
    attached = floater.attach(model, NEAR, positions="replace")
    data = batch("marian", rows=2, length=8)
    source, mask, target = data["input_ids"], data["attention_mask"], data["decoder_input_ids"]
    ours = model.model(**data).last_hidden_state
    theirs = by_hand(model, source, target, mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    parameters = list(attached.parameters())
    upstream = torch.randn_like(ours)
    for own, other in zip(
        torch.autograd.grad(ours, parameters, upstream),
        torch.autograd.grad(theirs, parameters, upstream),
        strict=True,
    ):
        assert own.any()
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*((name, "sdpa") for name in SERVED), ("marian", "eager"), ("gpt2", "eager")],
)
def test_zero_vectors_change_nothing_but_rounding(name: str, implementation: str) -> None:
    model = make(name)
    model.set_attn_implementation(implementation)
    unpadded = batch(name, rows=1)
    del unpadded["attention_mask"]
    data = [batch(name), unpadded]
    with torch.no_grad():
        before = [logits(model, inputs) for inputs in data]
        attached = floater.attach(model, floater.RelativeConfig(distance=3))
        keep = data[0]["attention_mask"].bool() if name not in SEQ2SEQ else ...
        for inputs, expected, tokens in zip(data, before, (keep, ...), strict=True):
            found = logits(model, inputs)
            torch.testing.assert_close(found[tokens], expected[tokens], rtol=1e-5, atol=1e-5)
        for parameter in attached.parameters():
            torch.nn.init.normal_(parameter)
        for inputs, expected in zip(data, before, strict=True):
            assert (logits(model, inputs) - expected).abs().max() > 1e-2
            with attached.disabled():
                assert torch.equal(logits(model, inputs), expected)
        attached.detach()
        assert torch.equal(logits(model, data[0]), before[0])
    assert model.config._attn_implementation == implementation
    assert not any(hasattr(module, "slot") for module in model.modules())


@pytest.mark.parametrize("name", [name for name in (*SEQ2SEQ, *CAUSAL) if name in SERVED])
def test_decoding_step_by_step_equals_the_full_forward(name: str) -> None:
    model = make(name).double()
    floater.attach(model, NEAR)
    check_decoding(name, model, tokens=6, tolerance=1e-9)


@pytest.mark.parametrize("name", SERVED)
def test_padded_rows_equal_rows_alone(name: str) -> None:
    model = make(name).double()
    floater.attach(model, NEAR, positions="replace")
    data = batch(name)
    alone = {key: value[1:2] for key, value in data.items()}
    length = int(alone["attention_mask"].sum())
    for key in ("input_ids", "attention_mask"):
        alone[key] = alone[key][:, :length]
    with torch.no_grad():
        together, single = logits(model, data)[1:2], logits(model, alone)
    torch.testing.assert_close(together[:, : single.shape[1]], single, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_padding_in_front_changes_no_distance(name: str) -> None:
    model = make(name).double()
    floater.attach(model, NEAR, positions="replace")
    ids = torch.randint(3, VOCABULARY, (1, 7))
    front = torch.cat((torch.full((1, 4), PAD), ids), 1)
    mask = front.ne(PAD).long()
    target = {"decoder_input_ids": torch.randint(3, VOCABULARY, (1, 5))} if name == "marian" else {}
    with torch.no_grad():
        alone = logits(model, {"input_ids": ids, **target})
        padded = logits(model, {"input_ids": front, "attention_mask": mask, **target})
    torch.testing.assert_close(padded[:, -alone.shape[1] :], alone, rtol=1e-9, atol=1e-9)


def test_inputs_may_be_longer_than_the_reach_and_than_any_table() -> None:
    model = make("bert", num_hidden_layers=1).double()
    floater.attach(model, NEAR, positions="replace")
    ids = torch.randint(3, VOCABULARY, (1, 100))  # the model's own table has 40 positions
    order = torch.arange(100)
    order[:40] = torch.randperm(40)
    with torch.no_grad():
        here, there = (logits(model, {"input_ids": found}) for found in (ids, ids[:, order]))
    torch.testing.assert_close(here[:, 42:], there[:, 42:], rtol=1e-9, atol=1e-9)
    assert (here[:, 38:42] - there[:, 38:42]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = make(name).double().train()
    attached = floater.attach(model, NEAR)
    data = [batch(name, length=11), batch(name, rows=2, length=7)]

    def gradients() -> list[Tensor]:
        model.zero_grad()
        outs = [logits(model, inputs) for inputs in data]  # two forwards, then one backward
        torch.autograd.backward([out.square().mean() for out in outs])
        return [
            parameter.grad.clone()
            for parameter in attached.parameters()
            if parameter.grad is not None
        ]

    plain = gradients()
    model.gradient_checkpointing_enable()
    again = gradients()
    assert len(plain) == len(again) == 2
    for one, other in zip(plain, again, strict=True):
        assert one.abs().amax((1, 2)).min() > 0  # every site learns
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_attention_dropout_is_that_of_the_model() -> None:
    model = make("marian", attention_dropout=0.5)
    model.set_attn_implementation("eager")
    model.train()
    data = batch("marian", rows=1)

    def drawn() -> Tensor:
        torch.manual_seed(3)
        with torch.no_grad():
            return logits(model, data)

    before = drawn()
    floater.attach(model, floater.RelativeConfig())
    torch.testing.assert_close(drawn(), before, rtol=1e-5, atol=1e-5)
    model.eval()
    assert (drawn() - before).abs().max() > 1e-2


@pytest.mark.parametrize("base", [True, False])
def test_saving_and_loading_keep_every_bit(tmp_path: Path, base: bool) -> None:
    model, data = make("marian"), batch("marian")
    model.config._name_or_path = str(tmp_path / "base")
    model.save_pretrained(tmp_path / "base")
    attached = floater.attach(model, NEAR, positions="replace", per_stack=True)
    assert set(attached.encoders) == {"encoder", "decoder"}
    with torch.no_grad():
        before = logits(model, data)
    floater.save_pretrained(model, tmp_path / "saved", base=base)
    assert "floater_relative" not in json.dumps(
        [path.read_text() for path in (tmp_path / "saved").glob("*config.json")]
    )
    assert "with a relative position encoding" in (tmp_path / "saved" / "README.md").read_text()
    loaded = floater.from_pretrained(AutoModelForSeq2SeqLM, tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(logits(loaded, data), before)
    found = floater.attachment(loaded)
    assert found is not None
    assert found.config == NEAR
    found.detach()
    plain = MarianMTModel.from_pretrained(tmp_path / "base").eval()
    with torch.no_grad():
        assert torch.equal(logits(loaded, data), logits(plain, data))


def test_copies_and_pickles_live_their_own_lives() -> None:
    model, data = make("marian"), batch("marian")
    attached = floater.attach(model, NEAR)
    with torch.no_grad():
        before = logits(model, data)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        with attached.disabled():
            plain = logits(model, data)
            copies.append(copy.deepcopy(model))
        for twin in copies:
            assert torch.equal(logits(twin, data), before)
            other = floater.attachment(twin)
            assert other is not None
            other.encoder.get_parameter("keys").zero_()
            assert not torch.equal(logits(twin, data), before)
            other.detach()
            assert torch.equal(logits(twin, data), plain)
        assert torch.equal(logits(model, data), before)


def test_threads_can_share_a_model() -> None:
    model = make("marian")
    floater.attach(model, NEAR)
    data = [batch("marian", length=length) for length in range(6, 18)]

    @torch.no_grad()
    def run(inputs: dict[str, Tensor]) -> Tensor:
        return logits(model, inputs)

    alone = [run(inputs) for inputs in data]
    with ThreadPoolExecutor(4) as pool:
        for together, single in zip(pool.map(run, data), alone, strict=True):
            torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-5)


def test_half_precision_comes_close() -> None:
    model, data = make("bert"), batch("bert", rows=1)
    floater.attach(model, NEAR)
    with torch.no_grad():
        exact = logits(model, data)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = logits(model, data)
        half = logits(model.to(torch.bfloat16), data)
    for rounded in (mixed, half):
        assert (rounded.float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.slow
def test_a_model_compiles_to_one_graph() -> None:
    model, data = make("marian"), batch("marian")
    floater.attach(model, NEAR, positions="replace")
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(**data, use_cache=False).logits, model(**data).logits, rtol=1e-4, atol=1e-4
        )


def test_sites_are_the_self_attentions_of_blocks() -> None:
    dim, rows = 8, 2 * NEAR.distance + 1
    model = make("marian")
    attached = floater.attach(model, NEAR)
    assert attached.site_names() == [
        f"{stack} block {number}" for stack in ("encoder", "decoder") for number in (1, 2)
    ]
    assert attached.num_parameters() == 4 * 2 * rows * dim
    assert attached.site_tables(5) is None
    attached.detach()
    sites = floater.Sites("qkv", stacks=("encoder",), blocks=[2])
    attached = floater.attach(model, NEAR, sites=sites)
    assert attached.site_names() == ["encoder block 2"]
    with torch.no_grad():
        states = model.model.encoder(**generation_inputs("marian"))[0]
        with attached.disabled():
            plain = model.model.encoder(**generation_inputs("marian"))[0]
    assert (states - plain).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        *(
            (name, {}, "self-attention is known to be plain .* choose a flow or a rotary encoder")
            for name in ("t5", "deberta-v2", "mpnet", "gemma2")
        ),
        ("bert", {"sites": "blocks"}, '`sites` must be "qkv", or'),
        (
            "marian",
            {"sites": floater.Sites("qkv", stacks=("encoder", "cross"))},
            'without "cross", for relative positions',
        ),
        ("bert", {"sites": floater.Sites("qkv", projections=("k",))}, '`sites` must be "qkv", or'),
        ("bert", {"rotary": floater.RotaryConfig()}, "`rotary` must be left out beside"),
        ("bert", {"indices": "mask"}, '`indices` must be "model" for relative positions'),
        ("bert", {"jitter": floater.TimeJitter(stretch=2)}, "`jitter` needs an encoder"),
        (
            "bert",
            {
                "sites": floater.Sites(
                    "qkv",
                    targets={
                        "blocks": "bert.encoder.layer.*",
                        "q": "bert.encoder.layer.*.attention.self.query",
                    },
                )
            },
            "BertForMaskedLM, given by path pattern",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    model = make(name)
    before = model.config._attn_implementation
    with pytest.raises(ArgumentError, match=message):
        floater.attach(model, floater.RelativeConfig(), **arguments)
    assert model.config._attn_implementation == before
    assert floater.attachment(model) is None


def test_what_needs_times_or_tables_is_refused() -> None:
    model = make("marian")
    attached = floater.attach(model, NEAR)
    with pytest.raises(ArgumentError, match="`at` needs an encoder that has times"):
        attached.at(source=[0.0]).__enter__()
    with pytest.raises(AttachmentError, match="nothing to bake"):
        attached.bake(10)
    with pytest.raises(ArgumentError, match="`jitter` needs an encoder that serves any time"):
        attached.jitter = floater.TimeJitter(offset=2)


def test_another_attention_implementation_is_an_error_not_a_skipped_attachment() -> None:
    model, data = make("bert"), batch("bert")
    attached = floater.attach(model, NEAR)
    model.set_attn_implementation("eager")
    with pytest.raises(AttachmentError, match="was changed to 'eager'; call detach"):
        model(**data)
    attached.detach()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ArgumentError, match="need the attention implementation 'sdpa' or 'eager'"):
        floater.attach(model, NEAR)


def test_two_models_of_one_config_do_not_disturb_each_other() -> None:
    config = make("bert").config
    models = [BertForMaskedLM(config).eval() for _ in range(2)]
    data = batch("bert")
    with torch.no_grad():
        plain = [logits(model, data) for model in models]
        attached = floater.attach(models[0], NEAR)
        torch.testing.assert_close(logits(models[1], data), plain[1], rtol=1e-5, atol=1e-5)
        assert (logits(models[0], data) - plain[0]).abs().max() > 1e-2
        attached.detach()
        assert torch.equal(logits(models[0], data), plain[0])


@pytest.mark.parametrize("first", ["attachment", "adapter"])
def test_vectors_train_beside_an_adapter(first: str) -> None:
    model, data = make("bert"), batch("bert")
    lora: dict[str, Any] = {"r": 4, "target_modules": ["query", "value"]}
    if first == "attachment":
        floater.attach(model, floater.RelativeConfig())
        peft: Any = get_peft_model(model, LoraConfig(**lora, modules_to_save=["floater"]))
    else:
        peft = get_peft_model(model, LoraConfig(**lora))
        floater.attach(peft, floater.RelativeConfig())
    attached = floater.attachment(peft)
    assert attached is not None
    before = logits(peft, data).detach()
    optimiser = torch.optim.SGD([p for p in attached.parameters() if p.requires_grad], lr=1e3)
    logits(peft, data).square().mean().backward()
    optimiser.step()
    assert all(bool(parameter.any()) for parameter in attached.parameters())
    with torch.no_grad():
        after = logits(peft, data)
        assert (after - before).abs().max() > 1e-4
        merged = peft.merge_and_unload()
        torch.testing.assert_close(logits(merged, data), after, rtol=1e-4, atol=1e-4)
