"""Fixed sinusoids (Eq. 3), optionally with a term for each block (Eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import Positive
from ..dynamics import sinusoid_frequencies
from ..errors import ArgumentError
from ..times import check_times
from .base import Encoder, EncoderConfig


class SinusoidalConfig(EncoderConfig):
    """Settings of :class:`Sinusoidal`."""

    base: Positive = 1e-4
    """c of Eq. 3: the slowest frequency."""
    block_term: bool = False
    """Add the term in the block number (Eq. 4), so that every block has a different encoding."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Sinusoidal:
        return Sinusoidal(self, sites, dim, blocks)


class Sinusoidal(Encoder):
    """sin(i·ω_j) for even j, cos(i·ω_j) for odd j, with i = t/Δ any real number.

    There are no parameters, and any length is supported.
    """

    like: Tensor

    def __init__(
        self, config: SinusoidalConfig, sites: int, dim: int, blocks: Sequence[int] | None = None
    ) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        self.blocks = tuple(range(1, sites + 1)) if blocks is None else tuple(blocks)
        if len(self.blocks) != sites:
            raise ArgumentError(
                f"`blocks` must number each of the {sites} sites, but has {len(self.blocks)} "
                "entries."
            )
        # follows .to(device, dtype)
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, times: Tensor) -> Tensor:
        # Phases are float64 whatever the model's type; the CPU computes them for MPS.
        device = self.like.device if self.like.device.type != "mps" else torch.device("cpu")
        index = check_times(times).to(device) / self.delta
        waves = self._waves(index).unsqueeze(-2)
        if self.config.block_term:
            waves = waves + self._waves(
                torch.tensor(self.blocks, dtype=torch.float64, device=device)
            )
        # all sites share what is the same for them
        return waves.to(self.like).expand(*index.shape, self.sites, self.dim)

    def _waves(self, index: Tensor) -> Tensor:
        phase = index.unsqueeze(-1) * sinusoid_frequencies(self.dim, self.config.base).to(
            index.device
        )
        waves = torch.empty_like(phase)
        waves[..., 0::2] = torch.sin(phase[..., 0::2])
        waves[..., 1::2] = torch.cos(phase[..., 1::2])
        return waves
