"""The encoders of an attachment, and the tables of encodings they compute or have baked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..encoders import Encoder, EncoderConfig, NoPosition, Rotary
from ..errors import ArgumentError, AttachmentError, LengthError
from .stack_encodings import Rotation, StackEncodings, TokenEncodings
from .token_positions import IndexRange, TokenPositions


class _MarkStale:
    """Hook of the encoders and their submodules: after weights were loaded, baked tables are
    recomputed when they are used.
    """

    def __init__(self, encoders: SiteEncoders) -> None:
        self._encoders = (encoders,)  # in a tuple: it must not become a submodule

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        self._encoders[0]._stale = bool(self._encoders[0]._baked)


class SiteEncoders(nn.Module):
    """The encoders of an attachment and the tables of encodings for its sites.

    Args:
        config: settings of the encoders.
        encoders: encoders by group of sites.
        groups: the sites that each encoder serves.
    """

    def __init__(
        self,
        config: EncoderConfig,
        encoders: Mapping[str, nn.Module],
        groups: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__()
        self.config = config
        self.encoders = nn.ModuleDict(encoders)
        self._groups = groups
        self._baked: tuple[str, ...] = ()
        self._stale = False
        for module in self.encoders.modules():
            module.register_load_state_dict_post_hook(_MarkStale(self))

    @property
    def delta(self) -> float:
        """Δ, the time between two neighbouring tokens."""
        return self.config.delta

    # Baking ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def bake(self, length: int) -> None:
        """Store the encodings of positions 0 … length-1, so that the solver no longer runs."""
        if not isinstance(length, int) or length < 1:
            raise ArgumentError(f"`length` must be a positive integer, but is {length!r}.")
        tables = {
            name: encoder.table(length).detach().clone()
            for name, encoder in self.encoders.items()
            if isinstance(encoder, Encoder)
        }
        if not tables:
            raise AttachmentError("A rotary encoder has nothing to bake.")
        self.set_baked(tables)

    def unbake(self) -> None:
        """Discard the stored encodings and solve again."""
        for name in self._baked:
            delattr(self, f"baked_{name}")
        self._baked, self._stale = (), False

    @property
    def baked_length(self) -> int | None:
        """Number of stored positions, None if not baked."""
        tables = self.baked_tables()
        return min(len(table) for table in tables.values()) if tables else None

    def set_baked(self, tables: dict[str, Tensor]) -> None:
        """Use these stored encodings [length, sites, dim], by group of sites."""
        self.unbake()
        for name, table in tables.items():
            self.register_buffer(f"baked_{name}", table, persistent=False)
        self._baked = tuple(tables)

    def baked_tables(self) -> dict[str, Tensor]:
        """Stored encodings by group of sites."""
        if self._stale:
            self.bake(min(len(getattr(self, f"baked_{name}")) for name in self._baked))
        return {name: getattr(self, f"baked_{name}") for name in self._baked}

    # Tables ---------------------------------------------------------------------------------------

    def tables(self, length: int) -> dict[str, Tensor]:
        """Encodings [≥ length, sites, dim] of positions 0, 1, …, by group of sites."""
        if not self._baked:
            return {name: encoder.table(length) for name, encoder in self._additive_encoders()}
        if (
            self.training
            and torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in self.parameters())
        ):
            raise AttachmentError(
                "A baked attachment cannot be trained, because its encodings are stored; call "
                "unbake() first, or freeze it with attachment.requires_grad_(False)."
            )
        baked = self.baked_tables()
        if not torch.compiler.is_compiling() and length > (self.baked_length or 0):
            raise LengthError(
                f"The attachment is baked to {self.baked_length} positions, but {length} are "
                f"needed; call bake({length}) or unbake()."
            )
        return baked

    def tables_at(self, times: Tensor) -> dict[str, Tensor]:
        """Encodings [len(times), sites, dim] at real-valued times, by group of sites."""
        if not self._baked:
            return {name: encoder(times) for name, encoder in self._additive_encoders()}
        exact = times / self.delta
        index = exact.round().to(torch.int64)
        if bool(((exact - index).abs() > 1e-6 * exact.abs().clamp(min=1)).any()):
            raise AttachmentError(
                "The times of a baked attachment must be multiples of Δ, but some lie in between; "
                "call unbake() first."
            )
        tables = self.tables(int(index.max()) + 1)
        return {name: table[index.to(table.device)] for name, table in tables.items()}

    def join(self, tables: Mapping[str, Tensor]) -> Tensor:
        """Join the tables of the groups to one table [length, sites, dim] of all sites."""
        if len(tables) == 1:
            return next(iter(tables.values()))
        columns = {
            site: tables[group][:, column]
            for group, members in self._groups.items()
            for column, site in enumerate(members)
        }
        return torch.stack([columns[site] for site in sorted(columns)], 1)

    def encode(
        self,
        tables: ForwardTables,
        own: TokenPositions,
        source: TokenPositions | None,
        device: torch.device,
    ) -> StackEncodings:
        """The encodings of one forward pass through a stack.

        Args:
            tables: the tables of the forward pass.
            own: positions of the stack's tokens.
            source: positions of the other stack's tokens, for cross-attention.
            device: where rotary angles are computed.
        """
        encoder = next(iter(self.encoders.values()))
        if isinstance(encoder, Rotary):
            return StackEncodings(None, None, self._rotation(encoder, own, device))
        if isinstance(encoder, NoPosition):
            return StackEncodings(None, None)
        return StackEncodings(
            self._look_up(tables, own), None if source is None else self._look_up(tables, source)
        )

    def _look_up(self, tables: ForwardTables, positions: TokenPositions) -> TokenEncodings:
        by_group, positions = tables.look_up(positions)
        return TokenEncodings(self.join(by_group), positions)

    def _rotation(
        self, rotary: Rotary, positions: TokenPositions, device: torch.device
    ) -> Rotation:
        index = positions.index
        if isinstance(index, IndexRange):
            index = index.tensor(device)
        elif index.shape[0] == 1:
            index = index[0]
        times = (
            index.to(torch.float64) * self.delta
            if positions.times is None
            else positions.times[index]
        )
        cosine, sine = rotary.angles(times)
        return Rotation(cosine.unsqueeze(-2), sine.unsqueeze(-2))

    def _additive_encoders(self) -> Iterator[tuple[str, Encoder]]:
        for name, encoder in self.encoders.items():
            assert isinstance(encoder, Encoder)
            yield name, encoder


_MAX_DENSE_LENGTH, _MAX_DENSE_RATIO = 4096, 64
"""A table has a row for every position up to the last, unless it would have more rows than the
first number and more than the second number of rows per token.
"""


class ForwardTables:
    """The tables of one forward pass through a whole model, computed once for its longest stack.

    Attributes:
        source: positions of the encoder's tokens, for the decoder.
    """

    def __init__(self, encoders: SiteEncoders, length: int = 0) -> None:
        self._encoders, self._length = encoders, length
        self._tables: dict[str, Tensor] | None = None
        self.source: TokenPositions | None = None

    def look_up(self, positions: TokenPositions) -> tuple[dict[str, Tensor], TokenPositions]:
        """Tables by group of sites, and the positions as rows of these tables."""
        if positions.times is not None:
            return self._encoders.tables_at(positions.times), positions
        if torch.compiler.is_compiling() and positions.bound is None:
            return self._encoders.tables(0), positions
        length = positions.table_length()
        if positions.bound is None and length > max(
            self._length, _MAX_DENSE_LENGTH, _MAX_DENSE_RATIO * positions.count()
        ):
            positions = positions.as_times(self._encoders.delta)
            assert positions.times is not None
            return self._encoders.tables_at(positions.times), positions
        if self._tables is None or next(iter(self._tables.values())).shape[0] < length:
            self._tables = self._encoders.tables(max(length, self._length))
        return self._tables, positions
