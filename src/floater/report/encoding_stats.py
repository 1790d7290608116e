"""What figures show of a table of encodings [position, dimension]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.floating]


def by_speed(table: Table) -> NDArray[np.intp]:
    """An order of the dimensions, from those that change fastest (relative to their spread) to the
    slowest.
    """
    table = np.asarray(table, np.float64)
    change = np.abs(np.diff(table, axis=0)).mean(0) if len(table) > 1 else np.zeros(table.shape[1])
    spread = table.std(0)
    return np.argsort(-change / np.maximum(spread, 1e-12), kind="stable")


def limit_of(table: Table) -> float:
    """Where a colour scale ends: all but the largest half per cent of the values lie within."""
    return float(np.quantile(np.abs(table), 0.995)) or 1.0


def plane(table: Table) -> tuple[Table, tuple[float, float]]:
    """The path in its first two principal components [position, 2], and the shares of the variance
    they carry.
    """
    centred = np.asarray(table, np.float64) - table.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(table), 2))
    count = min(2, len(values))
    points[:, :count] = left[:, :count] * values[:count]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])  # an SVD leaves the signs open
    power = np.zeros(2)
    power[:count] = values[:count] ** 2
    shares = power / max(float((values**2).sum()), 1e-300)
    return points * np.where(signs == 0, 1, signs), (float(shares[0]), float(shares[1]))


def flatness(table: Table) -> float:
    """The share of the variance that lies in the plane of the first two principal components."""
    power = np.linalg.svd(np.asarray(table, np.float64) - table.mean(0), compute_uv=False) ** 2
    return float(power[:2].sum() / max(float(power.sum()), 1e-300))


def similarity(table: Table) -> Table:
    """p(i)·p(j) [position, position]."""
    return np.asarray(table @ table.T)


def spectrum(table: Table) -> tuple[Table, Table]:
    """Frequencies [F] in cycles a position, and the power of each dimension [F, dimension] in dB
    below the largest.

    The mean is taken out and a Hann window applied.
    """
    centred = np.asarray(table, np.float64) - table.mean(0)
    power = np.abs(np.fft.rfft(centred * np.hanning(len(table))[:, None], axis=0)) ** 2
    largest = float(power.max()) or 1.0
    return np.fft.rfftfreq(len(table)), 10 * np.log10(np.maximum(power / largest, 1e-12))
