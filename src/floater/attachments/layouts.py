"""Where each architecture keeps its sites: a table of places, not code per model.

Paths are relative: stacks to the base model, everything else to its stack or block. Written for
transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from ..errors import LayoutError

Projection = Literal["q", "k", "v"]
Rule = Literal["given", "padding", "running", "whole"]
"""How a base model numbers its tokens.

given: `position_ids` if passed, else place + length of the cache (bert, gpt2 …).
padding: counts tokens that are not padding, from an offset (roberta, m2m100).
running: place + length of the cache, whatever is passed (marian, bart).
whole: place in the sequence that the blocks see (vit).
"""
Own = Literal["learned", "sinusoidal", "growing", "parameter", "none"]
"""What a base model's own position encoding is: a table with a last row, a fixed sinusoid of
limited length, one that grows by itself, a parameter instead of a module, or nothing.
"""


@dataclass(frozen=True)
class StackLayout:
    """One stack of blocks.

    Attributes:
        path: the stack, from the base model ("" is the base model itself).
        blocks: the list of blocks, from the stack; "*" stands for every index of a list.
        attention: q, k and v projections of self-attention, from a block; one fused path may stand
            for all three.
        cross: the same for attention to another stack.
        own: the module (or parameter) that holds the model's own position encoding, from the stack.
        own_kind: what that is.
        own_offset: rows of it before position 0.
        embeddings: the module that looks up `position_ids` and `token_type_ids`, from the stack, if
            there is one.
    """

    path: str
    blocks: str
    attention: Mapping[str, str]
    cross: Mapping[str, str] = field(default_factory=dict)
    own: str = ""
    own_kind: Own = "none"
    own_offset: int = 0
    embeddings: str = ""


@dataclass(frozen=True)
class Layout:
    """All stacks of an architecture, by name ("encoder", "decoder"), and how it counts."""

    stacks: Mapping[str, StackLayout]
    rule: Rule
    repeated: bool = False
    """One block module serves all blocks (albert)."""
    carried: bool = False
    """The stack may not pass unknown arguments on to its blocks: they find their encodings without
    it.
    """


_SELF = {
    part: f"attention.self.{name}"
    for part, name in zip("qkv", ("query", "key", "value"), strict=True)
}
_CROSS = {
    part: f"crossattention.self.{name}"
    for part, name in zip("qkv", ("query", "key", "value"), strict=True)
}
_SELF_ATTN = {part: f"self_attn.{part}_proj" for part in "qkv"}
_ENCODER_ATTN = {part: f"encoder_attn.{part}_proj" for part in "qkv"}


def _bert_like(offset: int = 0) -> dict[str, StackLayout]:
    return {
        "encoder": StackLayout(
            path="",
            blocks="encoder.layer.*",
            attention=_SELF,
            cross=_CROSS,
            own="embeddings.position_embeddings",
            own_kind="learned",
            own_offset=offset,
            embeddings="embeddings",
        )
    }


def _seq2seq(own_kind: Own, offset: int = 0) -> dict[str, StackLayout]:
    return {
        name: StackLayout(
            path=name,
            blocks="layers.*",
            attention=_SELF_ATTN,
            cross=_ENCODER_ATTN if name == "decoder" else {},
            own="embed_positions",
            own_kind=own_kind,
            own_offset=offset,
        )
        for name in ("encoder", "decoder")
    }


LAYOUTS: dict[str, Layout] = {
    "bert": Layout(_bert_like(), "given"),
    "electra": Layout(_bert_like(), "given"),
    "roberta": Layout(_bert_like(), "padding"),
    "xlm-roberta": Layout(_bert_like(), "padding"),
    "albert": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="encoder.albert_layer_groups.*.albert_layers.*",
                attention={
                    part: f"attention.{name}"
                    for part, name in zip("qkv", ("query", "key", "value"), strict=True)
                },
                own="embeddings.position_embeddings",
                own_kind="learned",
                embeddings="embeddings",
            )
        },
        "given",
        repeated=True,
    ),
    "distilbert": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="transformer.layer.*",
                attention={part: f"attention.{part}_lin" for part in "qkv"},
                own="embeddings.position_embeddings",
                own_kind="learned",
            )
        },
        "given",
    ),
    "marian": Layout(_seq2seq("sinusoidal"), "running"),
    "bart": Layout(_seq2seq("learned", offset=2), "running"),
    "m2m_100": Layout(_seq2seq("growing"), "padding"),
    "gpt2": Layout(
        {
            "decoder": StackLayout(
                path="",
                blocks="h.*",
                attention={"qkv": "attn.c_attn"},
                own="wpe",
                own_kind="learned",
            )
        },
        "given",
    ),
    "vit": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="layers.*",
                attention={part: f"attention.{part}_proj" for part in "qkv"},
                own="embeddings",
                own_kind="parameter",
            )
        },
        "whole",
    ),
}


def layout_of(model: nn.Module, targets: Mapping[str, str] | None) -> Layout:
    """The layout of a model: from the table, or from names given by pattern.

    Args:
        model: a Hugging Face model.
        targets: for architectures that are not in the table: "blocks" and "q", "k", "v" (or "qkv"
            for a fused projection, whose output must be [q | k | v]), each a path in which "*"
            stands for the number of a block, e.g. `{"blocks": "model.layers.*", "q":
            "model.layers.*.self_attn.q_proj", …}`.
    """
    if targets is not None:
        return _from_targets(model, targets)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in LAYOUTS:
        raise LayoutError(
            f"No layout is known for the architecture {kind!r} (known: {', '.join(LAYOUTS)}); name "
            "its places by pattern, sites=floater.Sites(kind, targets={...}). "
            f"{_candidates(model)}"
        )
    return LAYOUTS[kind]


def find(root: nn.Module, path: str) -> list[nn.Module]:
    """Modules at a path in which "*" stands for any number, in order of those numbers."""
    pattern = re.compile(re.escape(path).replace(r"\*", r"(\d+)") + r"\Z")
    found = [
        (match, module) for name, module in root.named_modules() if (match := pattern.match(name))
    ]
    return [
        module
        for match, module in sorted(found, key=lambda pair: tuple(map(int, pair[0].groups())))
    ]


_PARTS = ("q", "k", "v", "qkv")
_INTERLEAVED = (
    "bloom",
    "codegen",
    "deberta",
    "falcon",
    "gpt_neox",
    "gpt_neox_japanese",
    "persimmon",
)
"""Architectures whose one projection for q, k and v is laid out head by head."""


def _from_targets(model: nn.Module, targets: Mapping[str, str]) -> Layout:
    unknown = set(targets) - {"blocks", *_PARTS}
    if unknown or "blocks" not in targets:
        raise LayoutError(
            "`targets` must have the key 'blocks' and may have 'q', 'k', 'v' or 'qkv', but has "
            f"{', '.join(targets)}."
        )
    for key, path in targets.items():
        if not find(model, path):
            raise LayoutError(
                f"`targets[{key!r}]` = {path!r} matches no module. {_candidates(model)}"
            )
    blocks = targets["blocks"]
    if any(isinstance(module, nn.ModuleList) for module in find(model, blocks)):
        raise LayoutError(
            f"`targets['blocks']` = {blocks!r} must match blocks, but is a list of them; write "
            f"'{blocks}.*'."
        )
    inner = {}
    for key in (part for part in _PARTS if part in targets):
        if not targets[key].startswith(blocks + "."):
            raise LayoutError(
                f"`targets[{key!r}]` = {targets[key]!r} must lie inside the blocks {blocks!r}."
            )
        inner[key] = targets[key][len(blocks) + 1 :]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if "qkv" in inner and kind in _INTERLEAVED:
        raise LayoutError(
            "`targets['qkv']` must be a projection whose output is [q | k | v], but that of"
            f' {kind} mixes them head by head; choose sites="blocks" with the same'
            ' `targets["blocks"]`.'
        )
    return Layout(
        {"encoder": StackLayout(path="", blocks=blocks, attention=inner)}, "given", carried=True
    )


def _candidates(model: nn.Module) -> str:
    """Names of linear layers that look like projections of attention, numbers replaced by "*"."""
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
    """Width of an attention head, of a model `dim` wide."""
    config = getattr(base, "config", None)
    for name in ("num_attention_heads", "encoder_attention_heads", "n_head", "n_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int):
            return dim // heads
    raise LayoutError(
        f"The config of {type(base).__name__} does not say how many heads turn "
        "(num_attention_heads)."
    )
