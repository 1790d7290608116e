"""Architectures without a layout, given by path patterns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CodeGenConfig,
    CodeGenForCausalLM,
    DebertaConfig,
    DebertaModel,
    DebertaV2Config,
    DebertaV2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MPNetConfig,
    MPNetModel,
    T5Config,
    T5ForConditionalGeneration,
)

import floater
from floater.errors import (
    ArgumentError,
    LayoutError,
)

from .attach_models import MOVING, PAD, VOCABULARY, WIDTH, batch, logits, make


def test_an_unknown_architecture_by_pattern() -> None:
    """GPT-2 under another name: the same numbers as by its layout."""
    known, unlisted = make("gpt2"), make("gpt2")
    targets = {"blocks": "transformer.h.*", "qkv": "transformer.h.*.attn.c_attn"}
    by_layout = floater.attach(known, MOVING)
    by_name = floater.attach(unlisted, MOVING, sites=floater.Sites("qkv", targets=targets))
    by_name.load_state_dict(by_layout.state_dict())
    inputs = batch("gpt2")
    flow: Any = by_name.encoder
    with torch.no_grad():
        output = logits(unlisted, inputs)
        assert torch.equal(logits(known, inputs), output)
        assert (logits(make("gpt2"), inputs) - output).abs().max() > 1e-2, (
            "the encodings arrive at all"
        )
        flow.initial.copy_(flow.initial.roll(1, 0))
        assert (logits(unlisted, inputs) - output).abs().max() > 1e-2, "and each at its own site"


def test_blocks_of_an_encoder_decoder_by_pattern_are_not_counted_by_a_mask() -> None:
    model, targets, _ = unknown("t5 decoder")
    with pytest.raises(
        ArgumentError,
        match=r'`indices` must be "model" for the blocks of an encoder-decoder .* is "mask"',
    ):
        floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=targets), indices="mask")


_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
}


_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


_RELATIVE: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


_BUCKETS: dict[str, Any] = {"position_buckets": 8, "share_att_key": True}


_T5: dict[str, Any] = {
    **{
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
    },
    **{"dropout_rate": 0.0, "decoder_start_token_id": 0},
}


def unknown(name: str) -> tuple[Any, dict[str, str], dict[str, Tensor]]:
    """A tiny model without a layout, its places by pattern, and inputs."""
    torch.manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inner, paths = "encoder.layer.*", {}
    model: Any
    if name == "mpnet":
        model = MPNetModel(MPNetConfig(**_SMALL, **_NO_DROPOUT))
        paths = {part: f"{inner}.attention.attn.{part}" for part in "qkv"}
    elif name == "deberta-v2":
        model = DebertaV2Model(DebertaV2Config(**_SMALL, **_NO_DROPOUT, **_RELATIVE, **_BUCKETS))
        paths = {
            word[0]: f"{inner}.attention.self.{word}_proj" for word in ("query", "key", "value")
        }
        paths["k"], paths["v"] = (
            f"{inner}.attention.self.{word}_proj" for word in ("key", "value")
        )
    elif name == "deberta":
        model = DebertaModel(DebertaConfig(**_SMALL, **_NO_DROPOUT, **_RELATIVE))
    elif name == "llama":
        model, inner = LlamaForCausalLM(LlamaConfig(**_SMALL)), "model.layers.*"
        paths = {part: f"{inner}.self_attn.{part}_proj" for part in "qkv"}
    else:
        stack = name.removeprefix("t5 ")
        model = T5ForConditionalGeneration(T5Config(**_T5))
        inner = f"{stack}.block.*"
        paths = {part: f"{inner}.layer.0.SelfAttention.{part}" for part in "qkv"}
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5))
    targets = {"blocks": inner, **{key: path for key, path in paths.items() if key in "qkv"}}
    return model.eval().double(), targets, inputs


@pytest.mark.parametrize("kind", ["qkv", "blocks"])
@pytest.mark.parametrize(
    "name", ["mpnet", "deberta-v2", "deberta", "llama", "t5 encoder", "t5 decoder"]
)
def test_positions_reach_the_blocks_of_any_stack(name: str, kind: str) -> None:
    model, targets, inputs = unknown(name)
    if name == "deberta" and kind == "qkv":
        pytest.skip("its one projection is laid out head by head: see test_any_model")
    length = 5 if name == "t5 decoder" else 9
    with torch.no_grad():
        plain = logits(model, inputs)
    attached = floater.attach(
        model, floater.LearnedConfig(max_length=20), sites=floater.Sites(kind, targets=targets)
    )
    encoder: Any = attached.encoder
    with torch.no_grad():
        encoder.weight.normal_()
        table = encoder.weight.detach().clone()
        ours = logits(model, inputs)
        attached.detach()
        assert torch.equal(logits(model, inputs), plain)
        handles, site = [], 0
        for block in range(2):
            if kind == "blocks":
                added = table[:length, site]

                def add(module: Any, args: Any, kwargs: Any, added: Tensor = added) -> Any:
                    if args:
                        return (args[0] + added, *args[1:]), kwargs
                    return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + added}

                module = model.get_submodule(targets["blocks"].replace("*", str(block)))
                handles.append(module.register_forward_pre_hook(add, with_kwargs=True))
                site += 1
                continue
            for part in "qkv":
                calls: list[int] = []

                def after(
                    module: Any,
                    args: Any,
                    out: Tensor,
                    number: int = site,
                    calls: list[int] = calls,
                ) -> Tensor:
                    calls.append(
                        1
                    )  # deberta-v2 projects its relative positions with the same layer, later
                    return out + table[:length, number] if len(calls) == 1 else out

                module = model.get_submodule(targets[part].replace("*", str(block)))
                handles.append(module.register_forward_hook(after))
                site += 1
        expected = logits(model, inputs)
        for handle in handles:
            handle.remove()
    assert (ours - plain).abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["deberta-v2", "deberta", "llama", "t5 encoder"])
def test_gradient_checkpointing_by_pattern_changes_no_gradient(name: str) -> None:
    model, targets, inputs = unknown(name)
    attached = floater.attach(model, MOVING, sites=floater.Sites("blocks", targets=targets))
    model.train()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        logits(model, inputs).square().mean().backward()
        gradients.append(
            [
                parameter.grad.clone()
                for parameter in attached.parameters()
                if parameter.grad is not None
            ]
        )
        model.gradient_checkpointing_enable()
    assert len(gradients[0]) == 5
    for one, other in zip(*gradients, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "t5 decoder"])
def test_decoding_by_pattern_equals_the_full_forward(name: str) -> None:
    model, targets, inputs = unknown(name)
    floater.attach(model, MOVING, sites=floater.Sites("qkv", targets=targets))
    inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    settings = {
        "max_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with torch.no_grad():
        cached, whole = (
            model.generate(**inputs, use_cache=cache, **settings) for cache in (True, False)
        )
    assert torch.equal(cached.sequences, whole.sequences)
    for one, other in zip(cached.logits, whole.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_a_projection_laid_out_in_another_order_is_refused() -> None:
    config = CodeGenConfig(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=4, rotary_dim=4)
    targets = {"blocks": "transformer.h.*", "qkv": "transformer.h.*.attn.qkv_proj"}
    with pytest.raises(
        LayoutError,
        match=r"be a projection whose output is \[q \| k \| v\], .* but that of codegen is neither",
    ):
        floater.attach(
            CodeGenForCausalLM(config), MOVING, sites=floater.Sites("qkv", targets=targets)
        )
