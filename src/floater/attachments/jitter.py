"""Times that are stretched, shifted and skipped while training, so that a model meets those of
longer inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed
from pydantic import Field
from torch import Tensor, nn

from ..config import Config
from ..errors import ConfigError
from .token_positions import IndexRange, TokenPositions


class TimeJitter(Config):
    """Random times while training; each row of a batch has a draw of its own.

    A token at position i stands at Δ·(offset + skipped + stretch·(i + shift)). The two sides of an
    encoder-decoder share offset and stretch. In evaluation, and where gradients are disabled,
    tokens stand at i·Δ.
    """

    stretch: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] = 1.0
    """Largest factor by which the distance between tokens grows; factors from 1 up are drawn
    log-uniformly.
    """
    offset: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    """Largest offset of a row, in tokens."""
    local: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Largest shift of a single token, to either side, in tokens. The order of tokens stays."""
    gaps: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of places in a row where positions are skipped, a random number of them, so that the
    row reaches as far as `until` (PoSE: short windows meet the distances of long inputs).
    """
    until: Annotated[int, Field(ge=1)] | None = None
    """With gaps: number of positions within which the last token of a row stands."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the rows that are moved."""

    @property
    def drawn_columns(self) -> int:
        """Numbers that are drawn for a row; for internal use."""
        return 3 + 2 * self.gaps

    def __init__(self, /, *unnamed: Any, **settings: Any) -> None:
        super().__init__(*unnamed, **settings)
        if (self.gaps > 0) != (self.until is not None):
            raise ConfigError(
                "`gaps` and `until` of a TimeJitter go together, but `gaps` is "
                f"{self.gaps} and `until` is {self.until}."
            )


class JitterDraws(nn.Module):
    """The sequence of draws of an attachment: independent of the global random state, and
    determined by a seed and the number of draws so far.

    Both are a buffer, so that a run resumed from any checkpoint of the model continues the
    sequence. All processes have the same seed; each draws by its own number.
    """

    numbers: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._seed, self._count = 0, 0
        self.register_buffer("numbers", self._as_tensor())

    def _as_tensor(self) -> Tensor:
        # seeds have 64 bits without a sign
        seed = self._seed - 2**64 if self._seed >= 2**63 else self._seed
        return torch.tensor((seed, self._count), dtype=torch.int64)

    @property
    def count(self) -> int:
        """Number of draws so far."""
        return self._count

    def next(self, jitter: TimeJitter, rows: int, shared: Tensor | None = None) -> JitterDraw:
        """Draw for the rows of a batch; `shared` is that of :class:`JitterDraw`."""
        if not self._count:
            self._seed = torch.initial_seed() % 2**64
        self._count += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return JitterDraw(jitter, rows, _mixed(_mixed(self._seed + rank) + self._count), shared)

    def extra_repr(self) -> str:
        return f"count={self._count}"

    def _save_to_state_dict(self, *arguments: Any) -> None:
        """Write the numbers only here: a forward pass has no work on a device for them."""
        if self.numbers.device.type != "meta":
            self.numbers = self._as_tensor().to(self.numbers.device)
        super()._save_to_state_dict(*arguments)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Continue the sequence of the weights; accept weights that have none."""
        if f"{prefix}numbers" not in state_dict:
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if self.numbers.device.type != "meta":
            seed, count = self.numbers.tolist()
            self._seed, self._count = seed % 2**64, count


class JitterDraw:
    """One draw for the rows of a batch, for all stacks of a forward pass.

    Args:
        jitter: what is drawn.
        rows: number of rows.
        seed: of the draw.
        shared: what :meth:`of_rows` of another draw returned: offsets, stretches and skipped
            positions of the same rows. Only the shifts of single tokens are then drawn anew.
    """

    def __init__(
        self, jitter: TimeJitter, rows: int, seed: int, shared: Tensor | None = None
    ) -> None:
        self._jitter = jitter
        self._generator = torch.Generator().manual_seed(seed)
        drawn = self._drawn(rows) if shared is None else shared.cpu()
        columns: tuple[Tensor, ...] = drawn.split((1, 1, 1, jitter.gaps, jitter.gaps), 1)
        self._offset, self._stretch, self._local, self._cuts, self._skipped = columns

    def _drawn(self, rows: int) -> Tensor:
        jitter = self._jitter
        offset, stretch, moved = self._uniform(3, rows).unsqueeze(-1)
        is_moved = moved < jitter.share
        cuts, skipped = self._uniform(2, rows, jitter.gaps).sort(-1).values
        columns = (
            torch.where(is_moved, jitter.offset * offset, 0.0),
            torch.where(is_moved, jitter.stretch**stretch, 1.0),
            torch.where(is_moved, jitter.local, 0.0),
            cuts,
            torch.where(is_moved, skipped, 0.0),
        )
        return torch.cat([column.to(torch.float64) for column in columns], 1)

    def of_rows(self) -> Tensor:
        """What was drawn for each row [rows, …], for another call that has the same rows."""
        columns = (self._offset, self._stretch, self._local, self._cuts, self._skipped)
        return torch.cat(columns, 1)

    def last(self, length: int, delta: float) -> float:
        """No token of rows of this length stands at a later time."""
        places = self._offset + self._stretch * (length - 1 + self._local)
        if self._jitter.gaps:
            places = places + self._room(length)
        return delta * float(places.max())

    def _room(self, length: int) -> Tensor:
        """The positions [rows, 1] that rows of this length may skip."""
        assert self._jitter.until is not None
        last = self._offset + self._stretch * (length - 1 + self._local)
        return (self._jitter.until - 1 - last).clamp(min=0).floor()

    def _skips(self, length: int) -> Tensor:
        """The positions [rows, length] that were skipped before each token."""
        before = torch.arange(length, dtype=torch.float64) >= self._cuts.unsqueeze(-1) * length
        skipped = (self._skipped * (self._room(length) + 1)).floor().clamp(max=self._room(length))
        steps = torch.diff(skipped, dim=1, prepend=torch.zeros(len(skipped), 1).to(skipped))
        skips: Tensor = (before * steps.unsqueeze(-1)).sum(1)
        return skips

    def move(self, positions: TokenPositions, delta: float) -> TokenPositions:
        """The tokens of all rows, each at its own time."""
        index = positions.index
        if isinstance(index, IndexRange):
            index = index.tensor(torch.device("cpu")).unsqueeze(0)
        rows, length = len(self._offset), index.shape[1]
        place = index.cpu().to(torch.float64).expand(rows, length)
        if self._jitter.local:
            place = place + self._local * (2 * self._uniform(rows, length) - 1)
        place = self._offset + self._stretch * place
        if self._jitter.gaps:
            place = place + self._skips(length)
        times = (delta * place).clamp(min=0)
        return replace(
            positions,
            index=torch.arange(rows * length).view(rows, length),
            bound=None,
            times=times.flatten(),
            shared_range=None,
            one_per_token=True,
        )

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, generator=self._generator)


def _mixed(number: int) -> int:
    """A seed whose bits all depend on all bits of a number (the finaliser of splitmix64)."""
    mask = 2**64 - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return (number ^ (number >> 31)) >> 1
