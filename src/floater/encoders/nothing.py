"""No position encoding: the control of experiments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..times import check_times
from .base import Encoder, EncoderConfig


class NoPositionConfig(EncoderConfig):
    """Settings of :class:`NoPosition`."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> NoPosition:
        return NoPosition(self, sites, dim)


class NoPosition(Encoder):
    """Zeros at every time."""

    like: Tensor

    def __init__(self, config: NoPositionConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, times: Tensor) -> Tensor:
        return self.like.expand(*check_times(times).shape, self.sites, self.dim)
