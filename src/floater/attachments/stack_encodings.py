"""One forward through a stack: which encodings its sites get.

A passage is made when a stack is entered and travels with the arguments of its blocks. Nothing
about positions is kept in the model, so a block that is computed again (gradient checkpointing)
finds what it found the first time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sites import Place
from .token_positions import Places, Span


class Axis:
    """Encodings of one row of tokens (a stack's own, or the other stack's): columns [T, dim] by
    site, and where to look.
    """

    def __init__(self, table: Tensor, places: Places) -> None:
        self.columns = table.unbind(1)
        self.index = places.span or places.index

    def encodings(self, site: int, like: Tensor) -> Tensor:
        """[L, dim], or [B, L, dim] where rows of the batch stand at different positions."""
        column = self.columns[site]
        index = self.index
        if isinstance(index, Span):
            return column[index.first : index.first + index.length]
        index = index.to(column.device)
        if index.shape[0] == 1:
            return column[index[0]]
        return column[index]


class Turns:
    """Rotary angles of a stack's own tokens."""

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine, self.sine = cosine, sine


class Passage:
    """What a stack hands to its blocks.

    `calls` counts blocks for architectures that call one module again and again.
    """

    def __init__(self, own: Axis | None, source: Axis | None, turns: Turns | None = None) -> None:
        self.own, self.source, self.turns = own, source, turns
        self.calls = 0

    def fill(self, place: Place, like: Tensor) -> None:
        """Hand the encodings of a projection's sites to its slot."""
        slot: Any = place.layer.slot  # type: ignore[union-attr]
        if self.turns is not None:
            parts = tuple("qkv".index(part) for part in place.parts) if place.fused else ()
            slot.put(None, (self.turns.cosine, self.turns.sine, parts))
            return
        axis = self.source if place.axis == "source" else self.own
        if axis is None:
            return
        if not place.fused:
            slot.put(axis.encodings(place.first, like), None)
            return
        found = {part: axis.encodings(place.first + i, like) for i, part in enumerate(place.parts)}
        blank = torch.zeros_like(next(iter(found.values()))) if len(found) < 3 else None
        slot.put(torch.cat([found.get(part, blank) for part in "qkv"], -1), None)  # type: ignore[misc]

    def add(self, place: Place, hidden: Tensor) -> Tensor:
        """Add the encoding of what enters a block."""
        if self.own is None:
            return hidden
        return hidden + self.own.encodings(place.first, hidden).to(hidden.device, hidden.dtype)
