"""Where each architecture has its sites: a table of module paths instead of code per model.

Paths of stacks are relative to the base model, all others to their stack or block. Written for
transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from ..errors import LayoutError

Numbering = Literal["position_ids", "padding", "consecutive", "hidden_states"]
"""How a base model numbers its tokens.

position_ids: `position_ids` if passed, else consecutive (bert, gpt2 …).
padding: counts tokens that are not padding, from an offset (roberta, m2m100).
consecutive: consecutive numbers after the cached tokens, whatever is passed (marian, bart).
hidden_states: consecutive numbers for all states that the blocks process (vit).
"""
PositionsKind = Literal["learned", "sinusoidal", "growing", "parameter", "none"]
"""What a base model's built-in position encoding is: a learned table, a fixed sinusoid of limited
length, a sinusoid that the model itself extends, a parameter instead of a module, or nothing.
"""


@dataclass(frozen=True)
class StackLayout:
    """One stack of blocks.

    Attributes:
        path: path of the stack from the base model ("" is the base model itself).
        blocks: path of the blocks from the stack; "*" stands for every index of a list.
        attention: paths of the q, k and v projections of self-attention from a block; one path with
            the key "qkv" for a fused projection.
        cross: the same for attention to another stack.
        positions: path of the module that holds the model's built-in position encoding (or the
            parameter), from the stack.
        positions_kind: what that encoding is.
        positions_offset: rows of its table before position 0.
        embeddings: path of the module that looks up `position_ids` and `token_type_ids`, from the
            stack; empty if there is none.
    """

    path: str
    blocks: str
    attention: Mapping[str, str]
    cross: Mapping[str, str] = field(default_factory=dict)
    positions: str = ""
    positions_kind: PositionsKind = "none"
    positions_offset: int = 0
    embeddings: str = ""


@dataclass(frozen=True)
class Layout:
    """All stacks of an architecture, by name ("encoder", "decoder"), and how it numbers tokens."""

    stacks: Mapping[str, StackLayout]
    numbering: Numbering
    shared_blocks: bool = False
    """The same block modules are called several times (albert)."""
    drops_arguments: bool = False
    """The stack may not pass unknown arguments on to its blocks, so encodings need another way."""


_SELF = {
    letter: f"attention.self.{name}"
    for letter, name in zip("qkv", ("query", "key", "value"), strict=True)
}
_CROSS = {
    letter: f"crossattention.self.{name}"
    for letter, name in zip("qkv", ("query", "key", "value"), strict=True)
}
_SELF_ATTN = {letter: f"self_attn.{letter}_proj" for letter in "qkv"}
_ENCODER_ATTN = {letter: f"encoder_attn.{letter}_proj" for letter in "qkv"}


def _bert_like() -> dict[str, StackLayout]:
    return {
        "encoder": StackLayout(
            path="",
            blocks="encoder.layer.*",
            attention=_SELF,
            cross=_CROSS,
            positions="embeddings.position_embeddings",
            positions_kind="learned",
            embeddings="embeddings",
        )
    }


def _seq2seq(kind: PositionsKind, offset: int = 0) -> dict[str, StackLayout]:
    return {
        name: StackLayout(
            path=name,
            blocks="layers.*",
            attention=_SELF_ATTN,
            cross=_ENCODER_ATTN if name == "decoder" else {},
            positions="embed_positions",
            positions_kind=kind,
            positions_offset=offset,
        )
        for name in ("encoder", "decoder")
    }


LAYOUTS: dict[str, Layout] = {
    "bert": Layout(_bert_like(), "position_ids"),
    "electra": Layout(_bert_like(), "position_ids"),
    "roberta": Layout(_bert_like(), "padding"),
    "xlm-roberta": Layout(_bert_like(), "padding"),
    "albert": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="encoder.albert_layer_groups.*.albert_layers.*",
                attention={
                    letter: f"attention.{name}"
                    for letter, name in zip("qkv", ("query", "key", "value"), strict=True)
                },
                positions="embeddings.position_embeddings",
                positions_kind="learned",
                embeddings="embeddings",
            )
        },
        "position_ids",
        shared_blocks=True,
    ),
    "distilbert": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="transformer.layer.*",
                attention={letter: f"attention.{letter}_lin" for letter in "qkv"},
                positions="embeddings.position_embeddings",
                positions_kind="learned",
            )
        },
        "position_ids",
    ),
    "marian": Layout(_seq2seq("sinusoidal"), "consecutive"),
    "bart": Layout(_seq2seq("learned", offset=2), "consecutive"),
    "m2m_100": Layout(_seq2seq("growing"), "padding"),
    "gpt2": Layout(
        {
            "decoder": StackLayout(
                path="",
                blocks="h.*",
                attention={"qkv": "attn.c_attn"},
                positions="wpe",
                positions_kind="learned",
            )
        },
        "position_ids",
    ),
    "vit": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="layers.*",
                attention={letter: f"attention.{letter}_proj" for letter in "qkv"},
                positions="embeddings",
                positions_kind="parameter",
            )
        },
        "hidden_states",
    ),
}


def layout_of(model: nn.Module, targets: Mapping[str, str] | None) -> Layout:
    """The layout of a model: from the table, or from path patterns.

    Args:
        model: a Hugging Face model.
        targets: path patterns for an architecture that is not in the table, with the keys "blocks"
            and "q", "k", "v" (or "qkv" for a fused projection, whose output must be [q | k | v]).
            "*" stands for the number of a block, e.g. `{"blocks": "model.layers.*", "q":
            "model.layers.*.self_attn.q_proj", …}`.
    """
    if targets is not None:
        return _from_targets(model, targets)
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type not in LAYOUTS:
        raise LayoutError(
            f"No layout is known for the architecture {model_type!r} (known: "
            f"{', '.join(LAYOUTS)}); give path patterns of its modules, "
            "sites=floater.Sites(kind, targets={...}). "
            f"{_candidates(model)}"
        )
    return LAYOUTS[model_type]


def find_modules(root: nn.Module, path: str) -> list[nn.Module]:
    """Modules whose path matches; "*" stands for any number, and the modules are sorted by it."""
    pattern = re.compile(re.escape(path).replace(r"\*", r"(\d+)") + r"\Z")
    matches = [
        (match, module) for name, module in root.named_modules() if (match := pattern.match(name))
    ]
    return [
        module
        for match, module in sorted(matches, key=lambda pair: tuple(map(int, pair[0].groups())))
    ]


_PROJECTION_KEYS = ("q", "k", "v", "qkv")
_INTERLEAVED = (
    "bloom",
    "codegen",
    "deberta",
    "falcon",
    "gpt_neox",
    "gpt_neox_japanese",
    "persimmon",
)
"""Architectures whose fused projection interleaves q, k and v head by head."""


def _from_targets(model: nn.Module, targets: Mapping[str, str]) -> Layout:
    unknown = set(targets) - {"blocks", *_PROJECTION_KEYS}
    if unknown or "blocks" not in targets:
        raise LayoutError(
            "`targets` must have the key 'blocks' and may have 'q', 'k', 'v' or 'qkv', but has "
            f"{', '.join(targets)}."
        )
    for key, path in targets.items():
        if not find_modules(model, path):
            raise LayoutError(
                f"`targets[{key!r}]` = {path!r} matches no module. {_candidates(model)}"
            )
    blocks = targets["blocks"]
    if any(isinstance(module, nn.ModuleList) for module in find_modules(model, blocks)):
        raise LayoutError(
            f"`targets['blocks']` = {blocks!r} must match blocks, but is a list of them; write "
            f"'{blocks}.*'."
        )
    paths = {}
    for key in (name for name in _PROJECTION_KEYS if name in targets):
        if not targets[key].startswith(blocks + "."):
            raise LayoutError(
                f"`targets[{key!r}]` = {targets[key]!r} must lie inside the blocks {blocks!r}."
            )
        paths[key] = targets[key][len(blocks) + 1 :]
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if "qkv" in paths and model_type in _INTERLEAVED:
        raise LayoutError(
            "`targets['qkv']` must be a projection whose output is [q | k | v], but that of"
            f' {model_type} interleaves them head by head; choose sites="blocks" with the same'
            ' `targets["blocks"]`.'
        )
    return Layout(
        {"encoder": StackLayout(path="", blocks=blocks, attention=paths)},
        "position_ids",
        drops_arguments=True,
    )


def _candidates(model: nn.Module) -> str:
    """Paths of linear layers that look like attention projections, numbers replaced by "*"."""
    names = {
        re.sub(r"\.\d+(?=\.|\Z)", ".*", name): None
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D")
        and re.search(r"att|query|key|value|[qkv]_|qkv", name, re.IGNORECASE)
    }
    return "Candidates: " + (", ".join(names) if names else "none found") + "."


def base_of(model: nn.Module) -> nn.Module:
    """The model without its head."""
    base = getattr(model, "base_model", model)
    return base if isinstance(base, nn.Module) else model


def head_size(base: nn.Module, dim: int) -> int:
    """Size of an attention head in a model whose queries have size `dim`."""
    config = getattr(base, "config", None)
    for name in ("num_attention_heads", "encoder_attention_heads", "n_head", "n_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int):
            return dim // heads
    raise LayoutError(
        f"The config of {type(base).__name__} must have num_attention_heads for a rotary encoder, "
        "but lacks it."
    )
