"""Waves that a position table follows: a few frequencies, which all its dimensions share.

A sum of waves is the path of linear dynamics dp/dt = Ωp that rotate. It is bounded and goes on past
the last row of the table it was fitted to.
"""

from __future__ import annotations

import torch
from torch import Tensor

_COMPONENTS = 16
"""Principal components of a table that its frequencies are found in."""
_LAG = 160
"""Longest stretch of rows that frequencies are found in."""
_LONGEST_WAVE = 1e4
"""Tokens of a sinusoid's longest wave, over 2π."""
_ROUNDING = 1e-3
"""Largest difference of a sinusoid from a table that is stored as float16."""
_RIDGE = 1e-5
"""Penalty of the squared amplitudes, per row."""


@torch.no_grad()
def wave_frequencies(rows: Tensor, count: int) -> list[float]:
    """Return the frequencies of the waves in a table, in radians per row, in ascending order.

    The rows that follow one another span a space that moving on by one row rotates; the eigenvalues
    of that rotation are the frequencies (ESPRIT, Roy and Kailath 1989). What they decay by is left
    out, so that waves neither grow nor vanish.

    Args:
        rows: the table [rows, dim].
        count: number of frequencies; there are fewer if the table has fewer.
    """
    centred = rows.detach().cpu().double()
    centred = centred - centred.mean(0)
    lag = min(_LAG, len(centred) // 2)
    if lag < 2:
        return []
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    paths = centred @ directions[:_COMPONENTS].T
    stretches = paths.unfold(0, lag, 1).reshape(-1, lag)
    _, basis = torch.linalg.eigh(stretches.T @ stretches)
    signal = basis[:, -min(2 * count + 1, lag - 1) :]  # two of each wave, and a constant
    rotation = torch.linalg.lstsq(signal[:-1], signal[1:]).solution
    angles = torch.linalg.eigvals(rotation).angle()
    return sorted(float(angle) for angle in angles if angle > 1e-4)[:count]


@torch.no_grad()
def sinusoid(rows: Tensor) -> tuple[list[float], Tensor] | None:
    """Return the frequencies of a table that is a sinusoid, in radians per row, and the amplitudes
    [1 + 2·frequencies, dim] with which it goes on as it began; None for other tables.

    Every dimension of a sinusoid is a wave of one frequency; the frequencies are powers of one
    another, from 1 down to about 1e-4, as in Vaswani et al. 2017.

    Args:
        rows: the table [rows, dim].
    """
    count, dim = rows.shape
    half = dim // 2
    if dim % 2 or half < 2 or count < 4:
        return None
    target = rows.detach().cpu().double()
    places = torch.arange(count, dtype=torch.float64)
    for steps in (half - 1, half):  # the last frequency is 1e-4, or the one after it would be
        frequencies = _LONGEST_WAVE ** -(torch.arange(half, dtype=torch.float64) / steps)
        numbers = torch.arange(half)
        for owners in (numbers.repeat(2), numbers.repeat_interleave(2)):  # [sin | cos], or in turn
            own = torch.outer(places, frequencies)[:, owners].T  # [dim, rows]
            basis = torch.stack((own.cos(), own.sin()), -1)
            pairs = torch.linalg.lstsq(basis, target.T.unsqueeze(-1)).solution  # [dim, 2, 1]
            found = (basis @ pairs).squeeze(-1).T
            if (found - target).abs().max() > _ROUNDING * target.abs().max():
                continue
            amplitudes = torch.zeros(1 + 2 * half, dim, dtype=torch.float64)
            every = torch.arange(dim)
            amplitudes[1 + owners, every] = pairs[:, 0, 0]
            amplitudes[1 + half + owners, every] = pairs[:, 1, 0]
            return frequencies.tolist(), amplitudes
    return None


def waves(places: Tensor, frequencies: Tensor) -> Tensor:
    """Return 1 and the cosines and sines [*places.shape, 1 + 2·frequencies] at places."""
    angles = places.unsqueeze(-1) * frequencies
    constant = torch.ones_like(places).unsqueeze(-1)
    return torch.cat((constant, angles.cos(), angles.sin()), -1)


@torch.no_grad()
def wave_amplitudes(rows: Tensor, frequencies: Tensor, special: int) -> Tensor:
    """Return the amplitudes [1 + 2·frequencies, dim] of the waves that come closest to a table.

    Args:
        rows: the table [rows, dim].
        frequencies: in radians per row.
        special: rows at both ends that are left out.
    """
    target = rows[special : len(rows) - special].detach().cpu().double()
    places = torch.arange(special, len(rows) - special, dtype=torch.float64)
    basis = waves(places, frequencies.cpu().double())
    ridge = _RIDGE * len(basis) * torch.eye(basis.shape[1], dtype=torch.float64)
    amplitudes: Tensor = torch.linalg.solve(basis.T @ basis + ridge, basis.T @ target)
    return amplitudes
