"""Rotation of a path, so that it begins as a sinusoid (Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..times import check_times

SLOWEST = 1e-4
"""The slowest frequency, in radians per Δ; the fastest is 1."""
_GOLDEN = (5**0.5 - 1) / 2


class PathRotation:
    """Turns pairs of dimensions of encodings, each pair with a frequency of its own.

    If u solves du/dt = h(t, u), then p = R(t)·u solves dp/dt = Ωp + R(t)·h(t, R(t)⁻¹p) with the
    skew-symmetric Ω of the frequencies: rotating dynamics and a learned deviation from them. So
    nothing needs to be solved differently.

    The frequencies are spread like those of a sinusoid, between 1 and 1e-4 radians per Δ on a
    logarithmic scale. Their order is that of multiples of the golden ratio, so that the dimensions
    of every attention head have slow and fast ones.

    Args:
        dim: size of an encoding; even.
        delta: Δ, the time between two neighbouring tokens.
    """

    def __init__(self, dim: int, delta: float) -> None:
        if dim % 2:
            raise ArgumentError(f"`rotating` needs an even size of the encoding, but it is {dim}.")
        self.delta = delta
        places = (torch.arange(dim // 2, dtype=torch.float64) * _GOLDEN) % 1
        self.frequencies = SLOWEST**places

    def __call__(self, states: Tensor, times: Tensor) -> Tensor:
        """Rotate states [*times.shape, sites, dim]."""
        # Phases are float64 whatever the model's type; the CPU computes them for MPS.
        device = states.device if states.device.type != "mps" else torch.device("cpu")
        index = check_times(times).to(device) / self.delta
        angles = index[..., None, None] * self.frequencies.to(device)
        cosine, sine = (angle.to(states) for angle in (angles.cos(), angles.sin()))
        first, second = states.unflatten(-1, (-1, 2)).unbind(-1)
        turned = (first * cosine - second * sine, first * sine + second * cosine)
        return torch.stack(turned, -1).flatten(-2)
