"""A table with one free vector a position and site: BERT's way, and it ends at the last row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import LengthError
from .base import Count, Encoder, EncoderConfig, Positive, to_index


class LearnedConfig(EncoderConfig):
    """Settings of :class:`Learned`."""

    max_length: Count = 512
    """Number of rows: positions that can be told apart."""
    beyond: Literal["error", "clamp"] = "error"
    """What a position past the last row gets: an error, or the last row."""
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
                f' {int(index.max())} was asked for; raise `max_length`, choose beyond="clamp", or'
                " use an encoder without a limit: FlowConfig()."
            )
        return self.weight[index.to(self.weight.device)]
