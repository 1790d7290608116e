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
            raise ArgumentError(
                f"`rotating` needs an even size of the encoding, but it is {dim}; choose "
                "rotating=False, or a model of an even size."
            )
        self.delta = delta
        places = (torch.arange(dim // 2, dtype=torch.float64) * _GOLDEN) % 1
        self.frequencies = SLOWEST**places

    def __call__(self, states: Tensor, times: Tensor) -> Tensor:
        """Rotate states [*times.shape, sites, dim]."""
        return _turned(states, *(angle.unsqueeze(-2) for angle in self.angles(times, states)))

    def at(self, times: Tensor) -> RotationAt:
        """Return the rotation of states of any site at times [n]."""
        return RotationAt(self, times)

    def angles(self, times: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """Return cosine and sine [*times.shape, dim/2], as one complex number where these serve."""
        # Phases are float64 whatever the model's type; the CPU computes them for MPS.
        device = like.device if like.device.type != "mps" else torch.device("cpu")
        index = check_times(times).to(device) / self.delta
        angles = index.unsqueeze(-1) * self.frequencies.to(device)
        cosine, sine = angles.cos().to(like), angles.sin().to(like)
        return (torch.complex(cosine, sine),) if _has_complex(like) else (cosine, sine)


class RotationAt:
    """A rotation at some times [n]: its angles are computed once for all sites."""

    def __init__(self, rotation: PathRotation, times: Tensor) -> None:
        self._rotation, self._times = rotation, times
        self._computed: tuple[Tensor, ...] = ()

    def __call__(self, states: Tensor) -> Tensor:
        """Rotate states [n, dim]."""
        return _turned(states, *self._angles(states))

    def angles(self, like: Tensor) -> Tensor | None:
        """Return the angles as complex numbers [n, dim/2], where these serve."""
        return self._angles(like)[0] if _has_complex(like) else None

    def _angles(self, like: Tensor) -> tuple[Tensor, ...]:
        if not self._computed:
            self._computed = self._rotation.angles(self._times, like)
        return self._computed


def _has_complex(states: Tensor) -> bool:
    """Whether complex numbers serve: not in compiled graphs, nor in half precision or on MPS."""
    full = states.dtype in (torch.float32, torch.float64) and states.device.type != "mps"
    return full and not torch.compiler.is_compiling()


def _turned(states: Tensor, *angles: Tensor) -> Tensor:
    """Rotate pairs by angles: one complex number, or cosine and sine. One complex product takes a
    tenth of the time of the real ones.
    """
    if len(angles) == 1:
        pairs = torch.view_as_complex(states.contiguous().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * angles[0]).flatten(-2)
    cosine, sine = angles
    first, second = states.unflatten(-1, (-1, 2)).unbind(-1)
    turned = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.stack(turned, -1).flatten(-2)
