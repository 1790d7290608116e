"""Where each architecture has its sites: a table of module paths instead of code per model.

Paths of stacks are relative to the base model, all others to their stack or block. Written for
transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from ..errors import LayoutError
from .fused_heads import Arrangement

Numbering = Literal["position_ids", "mask", "padding", "consecutive", "hidden_states"]
"""How a base model numbers its tokens.

position_ids: `position_ids` if passed, else consecutive (bert, gpt2, llama …).
mask: `position_ids` if passed, else counts the attention mask (opt).
padding: counts tokens that are not padding, from an offset (roberta, m2m100).
consecutive: consecutive numbers after the cached tokens, whatever is passed (marian, bart, t5).
hidden_states: consecutive numbers for all states that the blocks process (vit, wav2vec2).
"""
PositionsKind = Literal[
    "learned", "sinusoidal", "growing", "parameter", "rotary", "convolution", "none"
]
"""What a base model's built-in position encoding is: a learned table, a fixed sinusoid of limited
length, a sinusoid that the model itself extends, a parameter instead of a module, rotary angles, a
convolution over the hidden states, or nothing.
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
        fused: how a fused projection orders its heads.
        relative: paths of modules that compute relative positions (a bias of the attention by
            distance), from the stack; they may come beside a table.
        relative_weights: paths of the modules whose weights only these use.
        limit: name of its number of positions in the config.
    """

    path: str
    blocks: str
    attention: Mapping[str, str]
    cross: Mapping[str, str] = field(default_factory=dict)
    positions: str = ""
    positions_kind: PositionsKind = "none"
    positions_offset: int = 0
    embeddings: str = ""
    fused: Arrangement = "parts"
    relative: tuple[str, ...] = ()
    relative_weights: tuple[str, ...] = ()
    limit: str = "max_position_embeddings"


@dataclass(frozen=True)
class Layout:
    """All stacks of an architecture, by name ("encoder", "decoder"), and how it numbers tokens."""

    stacks: Mapping[str, StackLayout]
    numbering: Numbering
    shared_blocks: bool = False
    """The same block modules are called several times (albert)."""
    drops_arguments: bool = False
    """The stack may not pass unknown arguments on to its blocks, so encodings need another way."""
    by_pattern: bool = False
    """Made from path patterns: little is known about the stack."""
    padding: int | None = None
    """Id of the padding token where the architecture fixes it, whatever its config says."""
    rotary: bool = False
    """The model rotates queries and keys itself."""
    normalises_heads: bool = False
    """Queries and keys are normalised after their projections, and with them what is added."""
    plain_attention: bool = False
    """Self-attention calls transformers' attention interface with a mask and a scale, and has a key
    for every token so far: relative positions can enter there.
    """
    frames: int = 0
    """Frames of sound (`input_features`) per position of its encoder, which takes inputs of one
    length only, that of its table; 0 for a model that takes inputs of any length.
    """

    def padding_of(self, config: Any) -> int | None:
        """Id of the padding token of a model with this config; None if it has none."""
        padding: int | None = getattr(config, "pad_token_id", None)
        return padding if self.padding is None else self.padding

    def table_offset(self, stack: StackLayout, padding: int | None) -> int:
        """Rows of a position table before that of position 0.

        Args:
            stack: the layout of its stack.
            padding: id of the padding token.
        """
        if self.numbering != "padding":
            return stack.positions_offset
        return stack.positions_offset + (1 if padding is None else padding) + 1


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


def _seq2seq(
    kind: PositionsKind, offset: int = 0, limits: Mapping[str, str] | None = None
) -> dict[str, StackLayout]:
    return {
        name: StackLayout(
            path=name,
            blocks="layers.*",
            attention=_SELF_ATTN,
            cross=_ENCODER_ATTN if name == "decoder" else {},
            positions="embed_positions",
            positions_kind=kind,
            positions_offset=offset,
            limit=(limits or {}).get(name, "max_position_embeddings"),
        )
        for name in ("encoder", "decoder")
    }


def _rotary_decoder(
    attention: Mapping[str, str] = _SELF_ATTN, fused: Arrangement = "parts"
) -> dict[str, StackLayout]:
    return {
        "decoder": StackLayout(
            path="",
            blocks="layers.*",
            attention=attention,
            positions="rotary_emb",
            positions_kind="rotary",
            fused=fused,
        )
    }


def _t5() -> dict[str, StackLayout]:
    return {
        name: StackLayout(
            path=name,
            blocks="block.*",
            attention={letter: f"layer.0.SelfAttention.{letter}" for letter in "qkv"},
            cross={letter: f"layer.1.EncDecAttention.{letter}" for letter in "qkv"}
            if name == "decoder"
            else {},
            relative=("block.0.layer.0.SelfAttention",),
            relative_weights=("block.0.layer.0.SelfAttention.relative_attention_bias",),
        )
        for name in ("encoder", "decoder")
    }


LAYOUTS: dict[str, Layout] = {
    "bert": Layout(_bert_like(), "position_ids", plain_attention=True),
    "electra": Layout(_bert_like(), "position_ids", plain_attention=True),
    "roberta": Layout(_bert_like(), "padding", plain_attention=True),
    "xlm-roberta": Layout(_bert_like(), "padding", plain_attention=True),
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
        plain_attention=True,
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
        plain_attention=True,
    ),
    "marian": Layout(_seq2seq("sinusoidal"), "consecutive", plain_attention=True),
    "bart": Layout(_seq2seq("learned", offset=2), "consecutive", plain_attention=True),
    "m2m_100": Layout(_seq2seq("growing"), "padding", plain_attention=True),
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
        plain_attention=True,
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
    "camembert": Layout(_bert_like(), "padding", plain_attention=True),
    "mpnet": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="encoder.layer.*",
                attention={letter: f"attention.attn.{letter}" for letter in "qkv"},
                positions="embeddings.position_embeddings",
                positions_kind="learned",
                embeddings="embeddings",
                relative=("encoder",),
                relative_weights=("encoder.relative_attention_bias",),
            )
        },
        "padding",
        drops_arguments=True,
        padding=1,
    ),
    "deberta-v2": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="encoder.layer.*",
                attention={
                    letter: f"attention.self.{name}_proj"
                    for letter, name in zip("qkv", ("query", "key", "value"), strict=True)
                },
                positions="embeddings.position_embeddings",
                positions_kind="learned",
                embeddings="embeddings",
                relative=("encoder.layer.*.attention.self",),
                relative_weights=(
                    "encoder.rel_embeddings",
                    "encoder.LayerNorm",
                    "encoder.layer.*.attention.self.pos_key_proj",
                    "encoder.layer.*.attention.self.pos_query_proj",
                ),
            )
        },
        "position_ids",
        drops_arguments=True,
    ),
    "modernbert": Layout(
        {
            "encoder": StackLayout(
                path="",
                blocks="layers.*",
                attention={"qkv": "attn.Wqkv"},
                positions="rotary_emb",
                positions_kind="rotary",
            )
        },
        "position_ids",
        rotary=True,
    ),
    "llama": Layout(_rotary_decoder(), "position_ids", rotary=True),
    "mistral": Layout(_rotary_decoder(), "position_ids", rotary=True),
    "qwen2": Layout(_rotary_decoder(), "position_ids", rotary=True),
    "qwen3": Layout(_rotary_decoder(), "position_ids", rotary=True, normalises_heads=True),
    "gemma2": Layout(_rotary_decoder(), "position_ids", rotary=True),
    "gemma3_text": Layout(_rotary_decoder(), "position_ids", rotary=True, normalises_heads=True),
    "smollm3": Layout(_rotary_decoder(), "position_ids", rotary=True),
    "phi3": Layout(_rotary_decoder({"qkv": "self_attn.qkv_proj"}), "position_ids", rotary=True),
    "gpt_neox": Layout(
        _rotary_decoder({"qkv": "attention.query_key_value"}, fused="heads"),
        "position_ids",
        rotary=True,
    ),
    "opt": Layout(
        {
            "decoder": StackLayout(
                path="decoder",
                blocks="layers.*",
                attention=_SELF_ATTN,
                positions="embed_positions",
                positions_kind="learned",
                positions_offset=2,
            )
        },
        "mask",
        plain_attention=True,
    ),
    "t5": Layout(_t5(), "consecutive"),
    "whisper": Layout(
        _seq2seq(
            "learned",
            limits={"encoder": "max_source_positions", "decoder": "max_target_positions"},
        ),
        "position_ids",
        frames=2,
    ),
    "wav2vec2": Layout(
        {
            "encoder": StackLayout(
                path="encoder",
                blocks="layers.*",
                attention={letter: f"attention.{letter}_proj" for letter in "qkv"},
                positions="pos_conv_embed",
                positions_kind="convolution",
            )
        },
        "hidden_states",
    ),
}


def position_limit(config: Any) -> int | None:
    """Number of positions that a model's built-in positions allow, by its config; None if there is
    no limit.
    """
    layout = LAYOUTS.get(getattr(config, "model_type", ""))
    stack = None if layout is None else next(iter(layout.stacks.values()))
    rows = getattr(config, StackLayout.limit if stack is None else stack.limit, None)
    if layout is None or stack is None or not isinstance(rows, int):
        return rows if isinstance(rows, int) else None
    if stack.positions_kind != "learned" or not getattr(config, "position_biased_input", True):
        return None
    if layout.numbering != "padding":
        return rows
    padding = layout.padding if layout.padding is not None else config.pad_token_id
    return rows - (1 if padding is None else padding) - 1


def layout_of(model: nn.Module, targets: Mapping[str, str] | None) -> Layout:
    """The layout of a model: from the table, or from path patterns.

    Args:
        model: a Hugging Face model.
        targets: path patterns for an architecture that is not in the table, with the keys "blocks"
            and "q", "k", "v" (or "qkv" for a fused projection, whose output must be [q | k | v],
            or ordered head by head in an architecture that is known for it, such as bloom).
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
_HEAD_BY_HEAD = ("bloom", "deberta", "falcon", "gpt_neox", "gpt_neox_japanese", "persimmon")
"""Architectures whose fused projection orders q, k and v head by head."""
_OTHER_ORDER = ("codegen",)
"""Architectures whose fused projection orders q, k and v in another way."""


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
    if "qkv" in paths and model_type in _OTHER_ORDER:
        raise LayoutError(
            "`targets['qkv']` must be a projection whose output is [q | k | v], or ordered head by"
            f' head, but that of {model_type} is neither; choose sites="blocks" with the same'
            ' `targets["blocks"]`.'
        )
    fused: Arrangement = "heads" if model_type in _HEAD_BY_HEAD else "parts"
    return Layout(
        {"encoder": StackLayout(path="", blocks=blocks, attention=paths, fused=fused)},
        "position_ids",
        drops_arguments=True,
        by_pattern=True,
        rotary=_has_module(model, r"rotary|rope"),
        normalises_heads=_has_module(model, r"\b(q|k|query|key)_?(layer_?)?norm\b|\bqk_norm\b"),
    )


def _has_module(model: nn.Module, pattern: str) -> bool:
    """Whether the name of a module matches."""
    return any(
        re.search(pattern, name.rpartition(".")[2], re.IGNORECASE)
        for name, _ in model.named_modules()
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
