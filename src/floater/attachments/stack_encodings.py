"""The encodings of one forward pass through a stack.

They are computed when the first block of the stack is entered and travel with the arguments of its
blocks. Nothing about positions is stored in the model, so a block that gradient checkpointing
computes again gets the same encodings as the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..encoders import DistanceVectors, Pieces
from .fused_heads import QueryGroups
from .projections import HeadRotation, PositionedLinear, ProjectionInput
from .relative_attention import AttentionInput
from .sites import InsertionPoint
from .slot import StepVectors
from .token_positions import IndexRange, TokenPositions


class TokenEncodings:
    """Encodings of the tokens of one stack, looked up by site.

    Args:
        columns: encodings [T, dim] of each site.
        positions: the rows that the tokens take.
    """

    def __init__(self, columns: Sequence[Tensor], positions: TokenPositions) -> None:
        self._columns = columns
        self._index = positions.shared_range or positions.index
        self._one_per_token = positions.one_per_token

    def at_site(self, site: int) -> Tensor:
        """[L, dim], or [B, L, dim] where the rows of the batch have different positions."""
        column, index = self._columns[site], self._index
        if isinstance(index, IndexRange):
            # without a slice, the gradient needs no padding; the lengths of a graph are not fixed
            fixed = not torch.compiler.is_compiling()
            if fixed and (index.first, index.length) == (0, len(column)):
                return column
            return column[index.first : index.first + index.length]
        if self._one_per_token:
            return column.view(*index.shape, -1)
        index = index.to(column.device)
        if index.shape[0] == 1:
            return column[index[0]]
        return column[index]


class RowEncodings:
    """Encodings of one position that all rows of a batch share, as in each step of generation,
    without gradients. They are looked up for all sites at once.

    Args:
        groups: the encodings [sites, dim] of each group of sites, and which sites these are.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[int], Tensor]]) -> None:
        self._places = {
            site: (matrix, row)
            for members, matrix in (groups if len(groups) > 1 else ())
            for row, site in enumerate(members)
        }
        self._matrix = None if len(groups) > 1 else groups[0][1]

    def at_site(self, site: int) -> Tensor:
        """[1, dim]."""
        matrix, row = self._places[site] if self._matrix is None else (self._matrix, site)
        return matrix[row : row + 1]

    def vectors(
        self, sites: Tensor, chosen: Sequence[int], queries: QueryGroups | None
    ) -> Sequence[Tensor]:
        """The encodings [dim] of some sites, each for every head of q where queries are grouped.

        Args:
            sites: their numbers [n].
            chosen: the same numbers.
            queries: how heads of q share encodings, if they do.
        """
        if self._matrix is None:
            found = [self.at_site(site)[0] for site in chosen]
            return found if queries is None else [queries.spread(vector) for vector in found]
        rows = self._matrix.index_select(0, sites)
        return (rows if queries is None else queries.spread(rows)).unbind(0)


class StepSlots:
    """The slots of all projections of a stack, which a step of generation fills at once: it is so
    short that a look-up in each block would take a noticeable part of it.

    Args:
        points: the projections, each of one letter.
    """

    def __init__(self, points: Sequence[InsertionPoint]) -> None:
        self.step = StepVectors()
        self._kinds = []
        number = 0
        for queries in dict.fromkeys(point.grouped for point in points):  # in order, each once
            kind = [point for point in points if point.grouped == queries]
            sites = [point.first_site for point in kind]
            self._kinds.append((queries, torch.tensor(sites, device="cpu"), sites))
            for point in kind:
                slot: Any = point.projection.slot  # type: ignore[union-attr]
                slot.join(self.step, number)
                number += 1

    def fill(self, encodings: RowEncodings) -> None:
        """Give every projection the encoding of its site."""
        vectors: list[Tensor | None] = []
        for queries, index, sites in self._kinds:
            vectors += encodings.vectors(index, sites, queries)
        self.step.vectors = vectors

    def end(self) -> None:
        """Take what was left back."""
        self.step.vectors = None


class SitePieces:
    """Encodings as polynomials of the time.

    Args:
        columns: coefficients [steps · (degree + 1), dim] of each site.
        pieces: the polynomials that they belong to, of each site.
    """

    def __init__(self, columns: Sequence[Tensor], pieces: Sequence[Pieces]) -> None:
        self.columns, self.pieces = columns, pieces
        self.end = min(piece.end for piece in pieces)

    def encodings(self, positions: TokenPositions) -> PieceEncodings:
        """The encodings of tokens that all stand at times of their own, up to the end."""
        assert positions.times is not None
        return PieceEncodings(self, positions.times, positions)


class PieceEncodings:
    """Encodings of tokens that all stand at times of their own, computed site by site: all of them
    at once would take much memory, and many sites are those of another stack.
    """

    def __init__(self, sites: SitePieces, times: Tensor, positions: TokenPositions) -> None:
        self._sites, self._length = sites, positions.length
        self._located = {id(piece): piece.locate(times) for piece in set(sites.pieces)}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def at_site(self, site: int, bias: Tensor | None = None) -> Tensor:
        """[B, L, dim].

        Args:
            site: number of the site.
            bias: a row to add to all encodings, which costs no pass over them.
        """
        located = self._located[id(self._sites.pieces[site])]
        encodings = located.states(self._sites.columns[site], bias)
        return encodings.view(-1, self._length, encodings.shape[-1])

    def takes(self, bias: Tensor) -> bool:
        """Whether a bias can be added to the polynomials."""
        like = self._sites.columns[0]
        return bias.dtype == like.dtype and bias.device == like.device and bias.dim() == 1


@dataclass(frozen=True)
class TurnedPhases:
    """What an encoder adds to the phases of a rotary model.

    Attributes:
        phases: radians [(B,) L, frequencies] to add.
        places: places [1 or B, L] of the tokens, in tokens, if they are not where the model
            numbers them.
        scale: number by which cosine and sine are multiplied.
    """

    phases: Tensor
    places: Tensor | None
    scale: float


class StackEncodings:
    """What a stack passes to its blocks.

    Args:
        own: encodings of the stack's tokens.
        source: encodings of the tokens of the other stack, for cross-attention.
        angles: cosine and sine [(B,) L, 1, head/2] of the tokens' rotary angles.
        distances: vectors for distances, by site.
        past: number of cached tokens in front of the stack's tokens.
        positions: positions of the stack's tokens.
        delta: Δ, the time between two neighbouring tokens.
        scale: number by which the cosine and sine of the model's phases are multiplied.
    """

    def __init__(
        self,
        own: TokenEncodings | RowEncodings | PieceEncodings | None,
        source: TokenEncodings | RowEncodings | PieceEncodings | None,
        angles: tuple[Tensor, Tensor] | None = None,
        distances: Sequence[DistanceVectors] = (),
        past: int | Tensor = 0,
        positions: TokenPositions | None = None,
        delta: float = 1.0,
        scale: float = 1.0,
    ) -> None:
        self._positions, self._delta, self._scale = positions, delta, scale
        self._own, self._source, self._angles = own, source, angles
        self._distances, self._past = distances, past
        self.block_calls = 0
        """Blocks entered so far, for architectures that call the same module several times."""
        self._first: int | None = None

    def first_block(self, block: nn.Module) -> bool:
        """Whether a block is the first that was entered; also when gradient checkpointing enters it
        again.
        """
        if self._first is None:
            self._first = id(block)
        return self._first == id(block)

    def fill_all(self, slots: StepSlots, like: Tensor) -> bool:
        """Fill the slots of all projections of a stack at once, where the tokens of all rows have
        one position and the projections can take it as their bias; return whether they can.

        Args:
            slots: of all projections.
            like: hidden states that enter the blocks.
        """
        if not isinstance(self._own, RowEncodings) or self._angles is not None:
            return False
        if like.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        slots.fill(self._own)
        return True

    def fill_slot(self, point: InsertionPoint) -> None:
        """Fill the slot of a projection with its encodings and rotation, or that of a
        self-attention with its vectors.
        """
        slot: Any = point.module.slot  # type: ignore[union-attr]
        if point.attention is not None:
            slot.put(AttentionInput(self._distances[point.first_site], self._past))
            return
        rotation = None
        if self._angles is not None and point.rotated:
            rotation = HeadRotation(*self._angles, point.rotated, point.fused)
        bias = self._whole_bias(point)
        whole = bias is not None
        if not whole:
            bias = self._bias(point)
        nothing = bias is None and rotation is None
        slot.put(None if nothing else ProjectionInput(bias, rotation, whole, point.grouped))

    def _whole_bias(self, point: InsertionPoint) -> Tensor | None:
        """The encodings of a projection together with its own bias, where that saves a pass over
        them.
        """
        encodings = self._source if point.tokens == "source" else self._own
        layer = point.projection
        if not isinstance(encodings, PieceEncodings) or not isinstance(layer, PositionedLinear):
            return None
        if not point.letters or point.fused is not None or point.grouped is not None:
            return None
        if type(layer.bias) is not nn.Parameter or not encodings.takes(layer.bias):
            return None  # none, or sharded over processes
        joined: Tensor = encodings.at_site(point.first_site, layer.bias)
        return joined

    def _bias(self, point: InsertionPoint) -> Tensor | None:
        encodings = self._source if point.tokens == "source" else self._own
        if encodings is None or not point.letters:
            return None
        if point.fused is None:
            return encodings.at_site(point.first_site)
        return point.fused.join(
            {
                letter: encodings.at_site(site)
                for site, letter in enumerate(point.letters, point.first_site)
            }
        )

    def turned(self, site: int) -> TurnedPhases:
        """What is added to the phases of the model's rotary positions."""
        assert self._own is not None
        assert self._positions is not None
        places = self._positions.places(self._delta)
        return TurnedPhases(self._own.at_site(site), places, self._scale)

    def rows(self, site: int) -> tuple[Tensor, TokenPositions]:
        """What is added to the rows of the model's position table, and the tokens' positions."""
        assert self._own is not None
        assert self._positions is not None
        return self._own.at_site(site), self._positions

    def add_to_input(self, point: InsertionPoint, hidden: Tensor) -> Tensor:
        """Add the encodings of a site to the hidden states that enter a block."""
        if self._own is None:
            return hidden
        return hidden + self._own.at_site(point.first_site).to(hidden.device, hidden.dtype)
