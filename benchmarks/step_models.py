"""The models, batches and variants that training.py and inference.py time.

All weights are random, and of the size of the model they are named after; the classes are those of
transformers (for translation the subclass that `floater train` uses, which forms the loss without
all logits).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    PreTrainedModel,
)

import floater
from floater.tasks.translation.model import MarianMTModel
from floater.training import freeze_flow

PAD = 1
STRETCH = 4.0
COARSE = 1e-3
"""A looser `rtol`, which is enough for activations in bf16 (docs/performance.md)."""
Batch = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batches.

    Attributes:
        kind: the architecture.
        layers: number of blocks, for translation on each side.
        width: size of the hidden states.
        heads: number of query heads.
        key_heads: number of key heads.
        feed_forward: inner size of the feed-forward layers.
        vocabulary: number of tokens.
        dropout: of hidden states and attention weights, as the model is usually trained.
        tokens: number of (target) tokens in a batch.
        length: largest length of a row.
    """

    kind: Literal["marian", "bert", "llama"]
    layers: int
    width: int
    heads: int
    key_heads: int
    feed_forward: int
    vocabulary: int
    dropout: float
    tokens: int
    length: int


SHAPES = {
    "transformer-base": Shape("marian", 6, 512, 8, 8, 2048, 16_000, 0.1, 2048, 64),
    "tiny": Shape("marian", 4, 128, 4, 4, 256, 8000, 0.3, 2048, 64),
    "bert-base": Shape("bert", 12, 768, 12, 12, 3072, 30_522, 0.1, 8 * 256, 256),
    # SmolLM2-135M, but for the vocabulary, which has 49,152 tokens there
    "llama": Shape("llama", 30, 576, 9, 3, 1536, 8192, 0.0, 2 * 256, 256),
}
CHANGEABLE = ("layers", "width", "vocabulary", "tokens", "length")
"""Sizes that have an option, for a quick try; without it they are those of the model."""


def shape_of(arguments: argparse.Namespace) -> Shape:
    """Return the sizes that the command line asks for."""
    shape = SHAPES[arguments.model]
    given = {name: getattr(arguments, name) for name in CHANGEABLE}
    changed = {name: value for name, value in given.items() if value is not None}
    if "width" in changed:
        heads = math.gcd(shape.heads, changed["width"])
        changed |= {
            "heads": heads,
            "key_heads": math.gcd(shape.key_heads, heads),
            "feed_forward": changed["width"] * shape.feed_forward // shape.width,
        }
    return replace(shape, **changed)


def build(shape: Shape) -> PreTrainedModel:
    """Return an untouched model; the same weights every time."""
    torch.manual_seed(0)
    return {"marian": _marian, "bert": _bert, "llama": _llama}[shape.kind](shape)


def _marian(shape: Shape) -> PreTrainedModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=shape.vocabulary,
            d_model=shape.width,
            encoder_layers=shape.layers,
            decoder_layers=shape.layers,
            encoder_attention_heads=shape.heads,
            decoder_attention_heads=shape.heads,
            encoder_ffn_dim=shape.feed_forward,
            decoder_ffn_dim=shape.feed_forward,
            dropout=shape.dropout,
            activation_function="relu",
            pad_token_id=PAD,
            eos_token_id=2,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    )


def _bert(shape: Shape) -> PreTrainedModel:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=shape.vocabulary,
            num_hidden_layers=shape.layers,
            hidden_size=shape.width,
            num_attention_heads=shape.heads,
            intermediate_size=shape.feed_forward,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
            max_position_embeddings=max(512, shape.length),
        )
    )


def _llama(shape: Shape) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            num_hidden_layers=shape.layers,
            hidden_size=shape.width,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            intermediate_size=shape.feed_forward,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


# --- batches ---


def batch(shape: Shape) -> Batch:
    """Return a random batch; the rows of translation have similar lengths, others are full."""
    if shape.kind == "marian":
        pairs = translation_batch(shape.tokens, shape.length, shape.vocabulary)
        return {**pairs, "num_items_in_batch": int(pairs["labels"].ne(-100).sum())}
    ids = torch.randint(3, shape.vocabulary, (max(shape.tokens // shape.length, 1), shape.length))
    if shape.kind == "llama":
        return {"input_ids": ids, "labels": ids}
    masked = torch.rand(ids.shape) < 0.15
    masked[:, 0] = True
    return {"input_ids": ids.masked_fill(masked, 2), "labels": ids.masked_fill(~masked, -100)}


def translation_batch(tokens: int, longest: int, vocabulary: int) -> dict[str, Tensor]:
    """Return random pairs of similar length, padded, like the batches of a translation run."""
    width = random.randint(longest // 2, longest)
    rows = max(tokens // width, 1)
    source, target = (torch.randint(3, vocabulary, (rows, width)) for _ in range(2))
    for side in (source, target):
        for row in range(rows):
            side[row, width - random.randint(0, width // 8) :] = PAD
    return {
        "input_ids": source,
        "attention_mask": source.ne(PAD).long(),
        "decoder_input_ids": target,
        "labels": target.where(target.ne(PAD), -100),
    }


# --- variants ---


def flow_config(horizon: float | None = None, *, rtol: float | None = None) -> floater.FlowConfig:
    """Return a flow for which the solver has to work.

    A fresh `FlowConfig()` has h ≡ 0 and stands still; timing it would flatter. This is the one that
    docs/choose.md names for training from scratch.

    Args:
        horizon: of its dynamics.
        rtol: of the solver, with a tenth of it as `atol`. Default: those of `FlowConfig`.
    """
    config = floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.1, horizon=horizon)
    if rtol is None:
        return config
    return config.model_copy(update={"rtol": rtol, "atol": rtol / 10})


def _flow(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, flow_config())


def _fresh(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, floater.FlowConfig())


def _coarse(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, flow_config(rtol=COARSE))


def _jitter(model: nn.Module, shape: Shape, rtol: float | None = None) -> None:
    horizon = STRETCH * shape.length * floater.FlowConfig().delta  # as docs/choose.md advises
    config = flow_config(horizon, rtol=rtol)
    floater.attach(model, config, jitter=floater.TimeJitter(stretch=STRETCH))


def _jitter_coarse(model: nn.Module, shape: Shape) -> None:
    _jitter(model, shape, COARSE)


def _frozen(model: nn.Module, shape: Shape) -> None:
    _flow(model, shape)
    freeze_flow(model)


def _sinusoidal(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, floater.SinusoidalConfig())


def _learned(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, floater.LearnedConfig(max_length=shape.length))


def _rotary(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, floater.RotaryConfig(), positions="replace")


def _rotary_flow(model: nn.Module, shape: Shape) -> None:
    floater.attach(model, flow_config(), rotary=floater.RotaryConfig(), positions="replace")


def _nothing(model: nn.Module, shape: Shape) -> None:
    pass


VARIANTS: Mapping[str, Callable[[nn.Module, Shape], None]] = {
    "untouched": _nothing,
    "untouched-again": _nothing,
    "flow": _flow,
    "flow-fresh": _fresh,
    "flow-coarse": _coarse,
    "flow-jitter": _jitter,
    "flow-jitter-coarse": _jitter_coarse,
    "flow-frozen": _frozen,
    "sinusoidal": _sinusoidal,
    "learned": _learned,
    "rotary": _rotary,
    "rotary-flow": _rotary_flow,
}
"""What each variant does to an untouched model."""


def sensible(name: str, shape: Shape) -> bool:
    """Return whether a variant says something about a model: a Llama's flow is rotary already."""
    return not (name == "rotary-flow" and shape.kind == "llama")
