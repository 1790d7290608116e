"""A learned table with one vector per position and site, as in BERT; it ends at the last row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..config import Positive, PositiveInt
from ..errors import LengthError
from .base import Encoder, EncoderConfig, to_index


class LearnedConfig(EncoderConfig):
    """Settings of :class:`Learned`."""

    max_length: PositiveInt = 512
    """Number of rows, that is, of positions."""
    beyond: Literal["error", "clamp"] = "error"
    """What happens at positions past the last row: an error, or they get the last row."""
    init_std: Positive = 0.02
    """Standard deviation of the initial rows."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Learned:
        return Learned(self, sites, dim)


class Learned(Encoder):
    """Rows [max_length, sites, dim], looked up by position t/Δ."""

    def __init__(self, config: LearnedConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.max_length, sites, dim))
        nn.init.normal_(self.weight, std=config.init_std)

    def forward(self, times: Tensor) -> Tensor:
        index = to_index(times, self.delta, "learned")
        last = self.config.max_length - 1
        if self.config.beyond == "clamp":
            index = index.clamp(max=last)
        elif int(index.max()) > last:
            raise LengthError(
                f"The learned encoder has {last + 1} positions (0 to {last}), but position"
                f' {int(index.max())} was requested; raise `max_length`, choose beyond="clamp", or'
                " use an encoder without a limit: FlowConfig()."
            )
        return self.weight[index.to(self.weight.device)]
