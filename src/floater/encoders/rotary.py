"""Rotary encoding: rotates queries and keys by angles proportional to the time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..config import Positive
from ..errors import ArgumentError
from ..times import check_times
from .base import EncoderConfig


class RotaryConfig(EncoderConfig):
    """Settings of :class:`Rotary`."""

    base: Positive = 10_000.0
    """About the ratio between the fastest and the slowest rotation."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Rotary:
        return Rotary(self, dim)


class Rotary(nn.Module):
    """Rotates the pairs (x_j, x_{j+dim/2}) of a head by the angle (t/Δ)·base^(-2j/dim).

    The product of a rotated query and a rotated key depends only on their distance in time. There
    are no parameters.
    """

    def __init__(self, config: RotaryConfig, dim: int) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ArgumentError(
                f"`dim` of a rotary head must be an even number ≥ 2, but is {dim!r}."
            )
        self.config, self.dim, self.delta = config, dim, config.delta

    def forward(self, times: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate query and key [..., length, dim] of tokens at `times` [..., length]."""
        if not query.shape[-1] == key.shape[-1] == self.dim:
            raise ArgumentError(
                f"`query` and `key` must have heads of size {self.dim}, but have {query.shape[-1]} "
                f"and {key.shape[-1]}; split them into heads first."
            )
        cosine, sine = (angle.to(query) for angle in self.angles(times))
        return rotate(query, cosine, sine), rotate(key, cosine, sine)

    def angles(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [..., length, dim/2] of the angles at `times`, float64."""
        return self.angles_at_checked(check_times(times))

    def angles_at_checked(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for times, float64, that are known to be valid; graphs can hold it."""
        half = torch.arange(self.dim // 2, dtype=torch.float64, device=times.device)
        frequencies = self.config.base ** (-2 * half / self.dim)
        phase = (times / self.delta).unsqueeze(-1) * frequencies
        return phase.cos(), phase.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (x_j, x_{j+dim/2}) of the last dimension."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
