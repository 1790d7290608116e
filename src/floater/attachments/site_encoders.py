"""The encoders of an attachment, and the tables of encodings they compute or have baked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..encoders import (
    DistanceVectors,
    Encoder,
    EncoderConfig,
    NoPosition,
    PhaseFlow,
    Relative,
    Rotary,
)
from ..errors import ArgumentError, AttachmentError, LengthError
from .jitter import JitterDraw
from .stack_encodings import (
    PieceEncodings,
    RowEncodings,
    SitePieces,
    StackEncodings,
    TokenEncodings,
)
from .time_settings import TimeSettings
from .token_positions import IndexRange, TokenPositions


class _MarkStale:
    """Hook of the encoders and their submodules: after weights were loaded, baked tables are
    recomputed when they are used.
    """

    def __init__(self, encoders: SiteEncoders) -> None:
        self._encoders = (encoders,)  # in a tuple: it must not become a submodule

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        self._encoders[0]._stale = bool(self._encoders[0]._baked)


class SiteEncoders(TimeSettings):
    """The encoders of an attachment and the tables of encodings for its sites.

    Args:
        config: settings of the encoders.
        encoders: encoders whose encodings are added, or relative ones, by group of sites.
        groups: the sites that each encoder serves.
        stacks: names of the model's stacks.
        rotary: the encoder that rotates queries and keys, if any.
    """

    def __init__(
        self,
        config: EncoderConfig,
        encoders: Mapping[str, nn.Module],
        groups: Mapping[str, Sequence[int]],
        stacks: Sequence[str],
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__(config, stacks, rotary is not None)
        self.encoders = nn.ModuleDict(encoders)
        self.rotary = rotary
        self._groups = groups
        self._baked: tuple[str, ...] = ()
        self._stale = False
        for module in self.encoders.modules():
            module.register_load_state_dict_post_hook(_MarkStale(self))

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
            raise AttachmentError("An attachment that adds no encodings has nothing to bake.")
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
        if times.requires_grad:
            raise AttachmentError(
                "A baked attachment has no gradient in the times, but they require one; call "
                "unbake() first."
            )
        exact = times / self.delta
        index = exact.round().to(torch.int64)
        if bool(((exact - index).abs() > 1e-6 * exact.abs().clamp(min=1)).any()):
            raise AttachmentError(
                "The times of a baked attachment must be multiples of Δ, but some lie in between; "
                "call unbake() first."
            )
        tables = self.tables(int(index.max()) + 1)
        return {name: table[index.to(table.device)] for name, table in tables.items()}

    def columns(self, tables: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """The encodings [length, dim] of every site, from the tables of their groups."""
        if len(tables) == 1:
            return next(iter(tables.values())).unbind(1)
        columns = {
            site: column
            for group, members in self._groups.items()
            for site, column in zip(members, tables[group].unbind(1), strict=True)
        }
        return [columns[site] for site in sorted(columns)]

    def encode(
        self,
        tables: ForwardTables,
        own: TokenPositions,
        source: TokenPositions | None,
        device: torch.device,
        past: int | Tensor = 0,
    ) -> StackEncodings:
        """The encodings of one forward pass through a stack.

        Args:
            tables: the tables of the forward pass.
            own: positions of the stack's tokens.
            source: positions of the other stack's tokens, for cross-attention.
            device: where rotary angles are computed.
            past: number of cached tokens in front of the stack's tokens.
        """
        angles = None if self.rotary is None else self._angles(self.rotary, own, device)
        if not self.adds:
            return StackEncodings(None, None, angles, self._distance_vectors(), past)
        return StackEncodings(
            self._look_up(tables, own),
            None if source is None else self._look_up(tables, source),
            angles,
            positions=own,
            delta=self.delta,
            scale=self.phase_scale,
        )

    @property
    def phase_scale(self) -> float:
        """Number by which the cosine and sine of a rotary model's phases are multiplied."""
        for encoder in self.encoders.values():
            if isinstance(encoder, PhaseFlow):
                return encoder.attention_scale
        return 1.0

    @property
    def adds(self) -> bool:
        """Whether there are encodings to add."""
        return any(
            not isinstance(encoder, NoPosition | Relative) for encoder in self.encoders.values()
        )

    def _distance_vectors(self) -> list[DistanceVectors]:
        """The vectors for distances of every site; none if the encoders are not relative."""
        vectors: dict[int, DistanceVectors] = {}
        for group, encoder in self.encoders.items():
            if isinstance(encoder, Relative):
                _check_in_memory(encoder)
                vectors |= zip(self._groups[group], encoder.vectors(), strict=True)
        return [vectors[site] for site in sorted(vectors)]

    def _look_up(
        self, tables: ForwardTables, positions: TokenPositions
    ) -> TokenEncodings | RowEncodings | PieceEncodings:
        times = positions.times
        if positions.one_per_token and times is not None and not times.requires_grad:
            found: PieceEncodings | None = tables.at_random_times(positions)
            if found is not None:
                return found
        by_group, positions = tables.look_up(positions)
        index = positions.shared_range or positions.index
        if (
            isinstance(index, IndexRange)
            and index.length == 1
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        ):
            rows = [(self._groups[name], each[index.first]) for name, each in by_group.items()]
            return RowEncodings(rows)
        return TokenEncodings(self.columns(by_group), positions)

    def pieces(self, end: float) -> SitePieces | None:
        """The encodings up to a time as polynomials; None if some encoder or device cannot have
        them.
        """
        if self._baked:
            return None
        found = {}
        for name, encoder in self._additive_encoders():
            piece = encoder.pieces(end)
            if piece is None or piece.coefficients.device.type not in ("cpu", "cuda"):
                return None
            found[name] = piece
        columns = self.columns(
            {name: piece.coefficients.flatten(0, 1) for name, piece in found.items()}
        )
        group = {site: name for name, members in self._groups.items() for site in members}
        return SitePieces(columns, [found[group[site]] for site in range(len(columns))])

    def _angles(
        self, rotary: Rotary, positions: TokenPositions, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine [(B,) L, 1, head/2] of the rotary angles of tokens."""
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
        cosine, sine = rotary.angles_at_checked(times)
        return cosine.unsqueeze(-2), sine.unsqueeze(-2)

    def _additive_encoders(self) -> Iterator[tuple[str, Encoder]]:
        for name, encoder in self.encoders.items():
            assert isinstance(encoder, Encoder)
            _check_in_memory(encoder)
            yield name, encoder


def _check_in_memory(encoder: nn.Module) -> None:
    """Refuse weights that are offloaded."""
    if any(parameter.device.type == "meta" for parameter in encoder.parameters()):
        raise AttachmentError(
            "The weights of an attachment must be in memory, but are offloaded with those of the "
            "model; attach after offloading (cpu_offload, disk_offload), or give 'floater' a device"
            " in the device_map."
        )


_MAX_DENSE_LENGTH, _MAX_DENSE_RATIO = 4096, 64
"""A table has a row for every position up to the last, unless it would have more rows than the
first number and more than the second number of rows per token.
"""


class ForwardTables:
    """The tables of one forward pass through a whole model, computed once for its longest stack.

    Attributes:
        source: positions of the encoder's tokens, for the decoder.
        moved_source: the same at their random times, while training with jitter.
        factors: what the times of each row are multiplied by, as its source determines it
            (`beyond="compress"`); None if that is not known.
    """

    def __init__(self, encoders: SiteEncoders, length: int = 0) -> None:
        self._encoders, self._length = encoders, length
        # here, because blocks may be entered in a checkpoint, which disables gradients at first
        self._has_gradients = torch.is_grad_enabled()
        self._tables: dict[str, Tensor] | None = None
        self.source: TokenPositions | None = None
        self.moved_source: TokenPositions | None = None
        self._shared_draw: Tensor | None = None
        self.factors: Tensor | None = None
        self._draw: JitterDraw | None = None
        self._pieces: SitePieces | None = None

    def draw(self, rows: int) -> JitterDraw | None:
        """The random times of this forward pass; None unless it trains with jitter. A pass without
        gradients does not train: `generate` would draw other times for every token.
        """
        jitter = self._encoders.jitter
        if jitter is None or not self._encoders.training or not self._has_gradients:
            return None
        if self._draw is None:
            shared = self._shared_draw
            if shared is not None and shared.shape != (rows, jitter.drawn_columns):
                shared = self.moved_source = None  # another jitter was set in between
            self._draw = self._encoders.draws.next(jitter, rows, shared)
        return self._draw

    def source_draw(self) -> tuple[Tensor, Tensor] | None:
        """What was drawn for each row [B, …] and the times [B, L] of the encoder's tokens, for a
        decoder that is called later; None without random times.
        """
        moved = self.moved_source
        if self._draw is None or moved is None or moved.times is None:
            return None
        return self._draw.of_rows(), moved.times.view(-1, moved.length)

    def share_draw(self, rows: Tensor | None, times: Tensor | None) -> None:
        """Take over what :meth:`source_draw` returned when the encoder was called."""
        if rows is None or times is None:
            return
        self._shared_draw = rows
        index = torch.arange(times.numel()).view(times.shape)
        self.moved_source = TokenPositions(index, None, times.cpu().flatten(), one_per_token=True)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def at_random_times(self, positions: TokenPositions) -> PieceEncodings | None:
        """The encodings of tokens at times of their own, from polynomials that all stacks share;
        None if the encoders have none.
        """
        assert positions.times is not None
        last = float(positions.times.max())
        if self._pieces is None or self._pieces.end < last:
            if self._draw is not None and self._length:
                last = max(last, self._draw.last(self._length, self._encoders.delta))
            self._pieces = self._encoders.pieces(last)
        return None if self._pieces is None else self._pieces.encodings(positions)

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
