"""Longer position tables: the rows of a pretrained model's table, what comes after them, and a flow
that is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..config import Positive, PositiveInt
from ..dynamics import REACH
from ..errors import ConfigError
from ..times import check_times
from .base import Encoder, EncoderConfig
from .flow import FlowConfig
from .waves import sinusoid, wave_amplitudes, wave_frequencies, waves

TableScaling = Literal["waves", "linear", "group", "cycle", "hierarchy"]
TABLE_SCALINGS: tuple[TableScaling, ...] = ("waves", "linear", "group", "cycle", "hierarchy")
SHARE = 0.4
"""Weight of the slow part of a hierarchical decomposition (α)."""
_SPECIAL_ROWS = 8
"""Rows at both ends of a table that waves are not fitted to. Those of a start token, which every
input has, and of a last token, which few have, are often far from all others.
"""


class TableFlowConfig(EncoderConfig):
    """Settings of :class:`TableFlow`."""

    scaling: TableScaling = "waves"
    """Where positions past the table start, before anything is learned.

    waves: the table goes on as a sum of waves that was fitted to it; a sinusoid goes on as it is.
    linear: row i stands at position i·factor, and positions between rows are interpolated.
    group: neighbouring positions, `factor` of them, share a row.
    cycle: the table is repeated.
    hierarchy: the rows of i // length and i % length are mixed.
    """
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """How many times as long as the table the longest inputs are."""
    learned: bool = True
    """Add a flow, which starts at zero. Without it, all positions stay where they start."""
    exact: bool = False
    """Leave inputs that fit into the table as they are, to the bit, also after training. With
    linear and group, that holds for inputs as a whole; otherwise for positions.
    """
    approximate: bool = False
    """With waves: take the rows of the table from the waves as well, so that all positions lie on
    one path.
    """
    waves: PositiveInt = 10
    """Number of frequencies of the waves; a sinusoid has its own. Seven numbers from 6 to 24 were
    compared on the last rows of two tables, MiniLM's and granite's; no number is best on both.
    """
    hidden: PositiveInt | None = None
    """Width of the hidden layer of the flow's dynamics; default: the size of a row."""
    reach: Positive = REACH
    """How far an update moves the flow at the longest length, in learning rates."""
    rtol: Positive = 1e-4
    """Allowed relative error of a step of the solver."""
    atol: Positive = 1e-5
    """Allowed absolute error of a step."""
    length: PositiveInt | None = None
    """Number of positions in the table. Default: that of the model it is attached to."""
    frequencies: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    """The frequencies of the waves, in radians per token. Default: those of the model's table."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> TableFlow:
        return TableFlow(self, sites, dim)

    def fitted_to(self, rows: Tensor) -> TableFlowConfig:
        """Return these settings with what a table determines written out."""
        changes: dict[str, object] = {}
        if self.length is None:
            changes["length"] = len(rows)
        if self.frequencies is None and self.scaling == "waves":
            special = _special_rows(len(rows))
            known = sinusoid(rows)
            changes["frequencies"] = tuple(
                wave_frequencies(rows[special : len(rows) - special], self.waves)
                if known is None
                else known[0]
            )
        return self.model_copy(update=changes)


class TableFlow(Encoder):
    """What is added to the rows of a model's own position table at position i = t/Δ.

    The rows themselves stay in the model. Past the last one, `scaling` says which rows are used
    again (:func:`floater.attachments.tables.own_rows` looks them up); with "waves" there is none,
    and the encoding is the whole position. A flow that starts at zero is added to all of them, or,
    with `exact`, only past the table.

    Attributes:
        amplitudes: of the waves, [1 + 2·frequencies, dim]; zero until `fit`.
    """

    amplitudes: Tensor

    def __init__(self, config: TableFlowConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        if sites != 1:
            raise ConfigError(f"A model has one position table, but `sites` is {sites}.")
        if config.length is None or (config.scaling == "waves" and config.frequencies is None):
            raise ConfigError(
                "`length` and `frequencies` of a TableFlowConfig must be those of a model's table, "
                "but are not set; attach it to a model, or set both."
            )
        if config.approximate and (config.scaling != "waves" or config.exact):
            raise ConfigError(
                '`approximate` needs scaling "waves" without `exact`, but these are '
                f"{config.scaling!r} and {config.exact}."
            )
        self.config, self.length = config, config.length
        self._frequencies = torch.tensor(
            config.frequencies or (), dtype=torch.float64, device="cpu"
        )
        self.register_buffer("amplitudes", torch.zeros(1 + 2 * len(self._frequencies), dim))
        self.flow: Encoder | None = None
        if config.learned:
            begin = self.length if config.exact and not self.by_input else 0
            longest = max(math.ceil(config.factor * self.length) - begin, 1)
            self.flow = FlowConfig(
                delta=config.delta,
                hidden=config.hidden,
                reach=config.reach,
                rtol=config.rtol,
                atol=config.atol,
                length=longest,
            ).build(1, dim)

    @property
    def by_input(self) -> bool:
        """Whether an exact input is recognised as a whole, because its positions would change."""
        return self.config.scaling in ("linear", "group")

    @property
    def longest(self) -> int:
        """Number of positions of the longest inputs. A factor that was computed from them is
        rounded, which must not add a position.
        """
        return math.ceil(round(self.config.factor * self.length, 6))

    @torch.no_grad()
    def fit(self, rows: Tensor) -> None:
        """Fit the waves to a table [length, dim]."""
        if self.config.scaling == "waves":
            known = sinusoid(rows)
            if known is not None and known[0] == list(self.config.frequencies or ()):
                amplitudes = known[1]
            else:
                special = _special_rows(len(rows))
                amplitudes = wave_amplitudes(rows, self._frequencies, special)
            self.amplitudes.copy_(amplitudes.to(self.amplitudes))

    def forward(self, times: Tensor) -> Tensor:
        checked = check_times(times)
        encodings = self.wave(checked / self.delta)
        if self.flow is not None:
            begin = self.length * self.delta if self.config.exact and not self.by_input else 0.0
            learned: Tensor = self.flow((checked - begin).clamp(min=0)).squeeze(-2)
            if begin:
                past = (checked >= begin - 1e-9).unsqueeze(-1).to(learned.device)
                learned = torch.where(past, learned, torch.zeros_like(learned))
            encodings = encodings.to(learned) + learned
        return encodings.unsqueeze(-2)

    @torch.no_grad()
    def all_waves(self, length: int) -> Tensor:
        """Return the waves [length, dim] at all positions, within the table too."""
        places = torch.arange(length, dtype=torch.float64, device=self.amplitudes.device)
        return waves(places, self._frequencies.to(places)).to(self.amplitudes) @ self.amplitudes

    def wave(self, places: Tensor) -> Tensor:
        """Return the waves [*places.shape, dim] past the table, and zeros within it."""
        amplitudes = self.amplitudes
        if self.config.scaling != "waves":
            return amplitudes.new_zeros(*places.shape, self.dim)
        if self.config.approximate:
            share = torch.ones_like(places)
        else:  # between the last row and the first position past it, both count
            share = (places - (self.length - 1)).clamp(0, 1)
            places = places.clamp(min=self.length)
        basis = waves(places, self._frequencies.to(places)) * share.unsqueeze(-1)
        return basis.to(amplitudes) @ amplitudes


def _special_rows(rows: int) -> int:
    return min(_SPECIAL_ROWS, rows // 8)
