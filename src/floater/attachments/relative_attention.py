"""Relative positions in the self-attention of a model, through transformers' attention interface.

A model calls the attention function that its config names. While relative positions are attached,
its config names one of those below: they take the vectors that a block put into the slot of its
self-attention, and pass all other attention on to the function that the config named before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ..encoders import DistanceVectors, RotaryConfig
from ..encoders.relative import attend, attention_weights
from ..errors import ArgumentError, AttachmentError
from .layouts import LAYOUTS, Layout
from .sites import Sites
from .slot import Slot

_PREFIX = "floater_relative_"
Attention = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class AttentionInput:
    """What a self-attention takes from its block: vectors, and the number of cached tokens."""

    vectors: DistanceVectors
    past: int | Tensor


def equip_attention(attention: nn.Module) -> None:
    """Give a self-attention a slot, in place."""
    slot: Slot[AttentionInput] = Slot()
    attention.slot = slot  # type: ignore[assignment]


def _relative(otherwise: Attention) -> Attention:
    """An attention function for transformers: relative where a slot is filled, or another one."""

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        slot = getattr(module, "slot", None)
        given: AttentionInput | None = slot.take() if isinstance(slot, Slot) else None
        if given is None:
            settings = {"dropout": dropout, "scaling": scaling, **kwargs}
            return otherwise(module, query, key, value, attention_mask, **settings)
        out, weights = attend(
            query,
            key,
            value,
            given.vectors,
            first=given.past,
            mask=attention_mask,
            scaling=scaling,
            dropout=dropout,
        )
        return out.transpose(1, 2).contiguous(), weights

    return attention


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Plain attention that returns its weights; each model of transformers has its own copy."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = query @ key.transpose(-1, -2) * scaling
    weights = attention_weights(logits, attention_mask, dropout).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _whole_mask(**settings: Any) -> Tensor | None:
    """The mask of scaled dot-product attention, also where that needs none because it is causal."""
    return sdpa_mask(**{**settings, "allow_is_causal_skip": False})


_IMPLEMENTATIONS: dict[str, tuple[Attention, Callable[..., Tensor | None]]] = {
    "sdpa": (_relative(sdpa_attention_forward), _whole_mask),
    "eager": (_relative(_eager), eager_mask),
}
"""By the implementation that is replaced: the attention, and what builds its masks."""


class AttentionSwitch:
    """The attention implementation of a model, replaced until `release`.

    Args:
        configs: the configs that the model's attentions and masks read it from.
    """

    def __init__(self, configs: Iterable[Any]) -> None:
        self._originals: list[tuple[Any, str]] = []
        for config in configs:
            name = str(config._attn_implementation).removeprefix(_PREFIX)
            if name not in _IMPLEMENTATIONS:
                raise ArgumentError(
                    f"Relative positions need the attention implementation "
                    f"{' or '.join(map(repr, _IMPLEMENTATIONS))}, but the model has {name!r}; call "
                    'model.set_attn_implementation("sdpa") first.'
                )
            self._originals.append((config, name))
        self.set(True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is switched on, as a copy of an attachment is enabled."""
        self.__dict__.update(state)
        self.set(True)

    def set(self, on: bool) -> None:
        """Use relative positions, or the implementation that the model had before."""
        for name, (attention, mask) in _IMPLEMENTATIONS.items():
            AttentionInterface.register(_PREFIX + name, attention)
            AttentionMaskInterface.register(_PREFIX + name, mask)
        for config, name in self._originals:
            config._attn_implementation = _PREFIX + name if on else name

    def check(self) -> None:
        """Raise if somebody else changed the implementation."""
        for config, name in self._originals:
            if config._attn_implementation != _PREFIX + name:
                raise AttachmentError(
                    "The attention implementation must stay as it is while relative positions are "
                    f"attached, but was changed to {config._attn_implementation!r}; call detach(), "
                    "change it, and attach again."
                )

    def release(self) -> None:
        """Restore the implementation that the model had before."""
        self.set(False)


def check_relative(
    model: nn.Module, rotary: RotaryConfig | None, sites: Sites, layout: Layout, indices: str
) -> None:
    """Refuse relative positions that do not fit the model or the other settings."""
    if not layout.plain_attention:
        raise ArgumentError(
            "Relative positions need an architecture whose self-attention is known to be plain and "
            "to call transformers' attention interface "
            f"({', '.join(name for name, row in LAYOUTS.items() if row.plain_attention)}), but the "
            f"model is a {type(model).__name__}"
            f"{', given by path pattern' if layout.by_pattern else ''}; choose a flow or a rotary "
            "encoder."
        )
    if (
        sites.kind != "qkv"
        or set(sites.projections) != set("qkv")
        or "cross" in (sites.stacks or ())
    ):
        raise ArgumentError(
            '`sites` must be "qkv", or Sites("qkv", blocks=…, stacks=…) without "cross", for'
            " relative positions, which are part of all self-attention of a block, but is"
            f" {sites!r}."
        )
    if rotary is not None:
        raise ArgumentError(
            "`rotary` must be left out beside a RelativeConfig, but is given: it stands beside an "
            "encoder whose encodings are added."
        )
    if indices != "model":
        raise ArgumentError(
            f'`indices` must be "model" for relative positions, which are distances between places'
            f" in the input however they are numbered, but is {indices!r}."
        )
