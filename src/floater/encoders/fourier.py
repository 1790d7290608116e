"""Learned Fourier features of time: waves with learned frequencies, and a linear term."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..config import Positive, PositiveInt
from ..times import check_times
from .base import Encoder, EncoderConfig


class FourierConfig(EncoderConfig):
    """Settings of :class:`Fourier`."""

    waves: PositiveInt = 32
    """Number of waves."""
    base: Positive = 1e-4
    """The slowest frequency at the start, in radians per Δ; the fastest is 1."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Fourier:
        return Fourier(self, sites, dim)


class Fourier(Encoder):
    """A learned linear map of a·i + b and of sin(i·ω_k + φ_k), with i = t/Δ any real number.

    a, b, ω and φ are learned too, as in Time2Vec; the map gives every site its own encoding, as
    mTAND's does for its heads. Frequencies start as those of a sinusoid, phases at random.
    """

    def __init__(self, config: FourierConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        exponents = torch.linspace(0, 1, config.waves)
        self.frequencies = nn.Parameter(config.base**exponents)
        self.phases = nn.Parameter(2 * math.pi * torch.rand(config.waves))
        self.slope = nn.Parameter(torch.tensor(config.base))
        self.offset = nn.Parameter(torch.zeros(()))
        self.weight = nn.Parameter(torch.randn(1 + config.waves, sites * dim) / config.waves**0.5)

    def forward(self, times: Tensor) -> Tensor:
        # Phases are float64 whatever the model's type; the CPU computes them for MPS.
        weight = self.weight
        device = weight.device if weight.device.type != "mps" else torch.device("cpu")
        index = check_times(times).to(device).unsqueeze(-1) / self.delta
        parameters = (self.frequencies, self.phases, self.slope, self.offset)
        frequencies, phases, slope, offset = (each.to(index) for each in parameters)
        features = torch.cat((slope * index + offset, (index * frequencies + phases).sin()), -1)
        encodings = features.to(weight) @ weight
        return encodings.view(*features.shape[:-1], self.sites, self.dim)
