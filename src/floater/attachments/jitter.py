"""Times that are stretched, shifted and skipped while training, so that a model meets those of
longer inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed
from pydantic import Field
from torch import Tensor

from ..config import Config
from ..errors import ConfigError
from .token_positions import IndexRange, TokenPositions


class TimeJitter(Config):
    """Random times while training; each row of a batch has a draw of its own.

    A token at position i stands at Δ·(offset + skipped + stretch·(i + shift)). The two sides of an
    encoder-decoder share offset and stretch. In evaluation tokens stand at i·Δ.
    """

    stretch: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Largest factor by which the distance between tokens grows; factors from 1 up are drawn
    log-uniformly.
    """
    offset: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
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

    def __init__(self, /, *unnamed: Any, **settings: Any) -> None:
        super().__init__(*unnamed, **settings)
        if (self.gaps > 0) != (self.until is not None):
            raise ConfigError(
                "`gaps` and `until` of a TimeJitter go together, but `gaps` is "
                f"{self.gaps} and `until` is {self.until}."
            )


class JitterDraws:
    """The sequence of draws of an attachment: independent of the global random state, and
    determined by a seed and the number of draws so far.
    """

    def __init__(self) -> None:
        self._seed: int | None = None
        self._count = 0

    def next(self, jitter: TimeJitter, rows: int) -> JitterDraw:
        """Draw for the rows of a batch."""
        if self._seed is None:
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            self._seed = _mixed(torch.initial_seed() + rank)
        self._count += 1
        return JitterDraw(jitter, rows, _mixed(self._seed + self._count))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs so that a resumed run continues the sequence."""
        if self._seed is None:
            return {}
        return {"seed": torch.tensor(self._seed), "count": torch.tensor(self._count)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue the sequence that :meth:`state` described; from its start if that was empty."""
        self._seed = int(state["seed"]) if state else None
        self._count = int(state["count"]) if state else 0


class JitterDraw:
    """One draw for the rows of a batch, for all stacks of a forward pass."""

    def __init__(self, jitter: TimeJitter, rows: int, seed: int) -> None:
        self._jitter = jitter
        self._generator = torch.Generator().manual_seed(seed)
        offset, stretch, moved = self._uniform(3, rows)
        is_moved = moved < jitter.share
        self._offset = torch.where(is_moved, jitter.offset * offset, 0.0).unsqueeze(1)
        self._stretch = torch.where(is_moved, jitter.stretch**stretch, 1.0).unsqueeze(1)
        self._local = torch.where(is_moved, jitter.local, 0.0).unsqueeze(1)
        cuts, skipped = self._uniform(2, rows, jitter.gaps).sort(-1).values
        self._cuts = cuts
        self._skipped = torch.where(is_moved.unsqueeze(1), skipped, 0.0)

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
