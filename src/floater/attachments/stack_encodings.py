"""The encodings of one forward pass through a stack.

They are computed when the first block of the stack is entered and travel with the arguments of its
blocks. Nothing about positions is stored in the model, so a block that gradient checkpointing
computes again gets the same encodings as the first time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sites import InsertionPoint
from .token_positions import IndexRange, TokenPositions


class TokenEncodings:
    """Encodings of the tokens of one stack, looked up by site.

    Args:
        table: encodings [T, sites, dim].
        positions: the rows of the table that the tokens take.
    """

    def __init__(self, table: Tensor, positions: TokenPositions) -> None:
        self._columns = table.unbind(1)
        self._index = positions.shared_range or positions.index

    def at_site(self, site: int) -> Tensor:
        """[L, dim], or [B, L, dim] where the rows of the batch have different positions."""
        column, index = self._columns[site], self._index
        if isinstance(index, IndexRange):
            return column[index.first : index.first + index.length]
        index = index.to(column.device)
        if index.shape[0] == 1:
            return column[index[0]]
        return column[index]


class Rotation:
    """Rotary angles of the tokens of one stack."""

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine, self.sine = cosine, sine


class StackEncodings:
    """What a stack passes to its blocks.

    Args:
        own: encodings of the stack's tokens.
        source: encodings of the tokens of the other stack, for cross-attention.
        rotation: rotary angles, for an encoder that adds nothing.
    """

    def __init__(
        self,
        own: TokenEncodings | None,
        source: TokenEncodings | None,
        rotation: Rotation | None = None,
    ) -> None:
        self._own, self._source, self._rotation = own, source, rotation
        self.block_calls = 0
        """Blocks entered so far, for architectures that call the same module several times."""

    def fill_slot(self, point: InsertionPoint) -> None:
        """Put the encodings of a projection's sites into its slot."""
        slot: Any = point.projection.slot  # type: ignore[union-attr]
        if self._rotation is not None:
            thirds = tuple("qkv".index(letter) for letter in point.letters) if point.fused else ()
            slot.put(None, (self._rotation.cosine, self._rotation.sine, thirds))
            return
        encodings = self._source if point.tokens == "source" else self._own
        if encodings is None:
            return
        if not point.fused:
            slot.put(encodings.at_site(point.first_site), None)
            return
        by_letter = {
            letter: encodings.at_site(site)
            for site, letter in enumerate(point.letters, point.first_site)
        }
        zeros = torch.zeros_like(next(iter(by_letter.values()))) if len(by_letter) < 3 else None
        parts: list[Any] = [by_letter.get(letter, zeros) for letter in "qkv"]
        slot.put(torch.cat(parts, -1), None)

    def add_to_input(self, point: InsertionPoint, hidden: Tensor) -> Tensor:
        """Add the encodings of a site to the hidden states that enter a block."""
        if self._own is None:
            return hidden
        return hidden + self._own.at_site(point.first_site).to(hidden.device, hidden.dtype)
