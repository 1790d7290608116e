"""Statistics of a table of encodings [position, dimension]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]


def by_speed(table: Matrix) -> NDArray[np.intp]:
    """The dimensions from the fastest to the slowest, by mean change relative to their spread."""
    table = np.asarray(table, np.float64)
    change = np.abs(np.diff(table, axis=0)).mean(0) if len(table) > 1 else np.zeros(table.shape[1])
    spread = table.std(0)
    return np.argsort(-change / np.maximum(spread, 1e-12), kind="stable")


def color_limit(table: Matrix) -> float:
    """The end of the colour scale: 99.5 % of the absolute values lie below it."""
    return float(np.quantile(np.abs(table), 0.995)) or 1.0


def plane(table: Matrix) -> tuple[Matrix, tuple[float, float]]:
    """Project onto the first two principal components.

    Returns:
        The points [position, 2], and the share of the variance that each component explains.
    """
    centred = np.asarray(table, np.float64) - table.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(table), 2))
    count = min(2, len(values))
    points[:, :count] = left[:, :count] * values[:count]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])  # an SVD does not fix the signs
    power = np.zeros(2)
    power[:count] = values[:count] ** 2
    shares = power / max(float((values**2).sum()), 1e-300)
    return points * np.where(signs == 0, 1, signs), (float(shares[0]), float(shares[1]))


def flatness(table: Matrix) -> float:
    """The share of the variance that the first two principal components explain."""
    power = np.linalg.svd(np.asarray(table, np.float64) - table.mean(0), compute_uv=False) ** 2
    return float(power[:2].sum() / max(float(power.sum()), 1e-300))


def similarity(table: Matrix) -> Matrix:
    """The products p(i)·p(j) [position, position]."""
    return np.asarray(table @ table.T)


def spectrum(table: Matrix) -> tuple[Matrix, Matrix]:
    """The power spectrum of every dimension, without the mean and with a Hann window.

    Returns:
        Frequencies [F] in cycles per position, and the power [F, dimension] in dB relative to the
        largest value.
    """
    centred = np.asarray(table, np.float64) - table.mean(0)
    power = np.abs(np.fft.rfft(centred * np.hanning(len(table))[:, None], axis=0)) ** 2
    largest = float(power.max()) or 1.0
    return np.fft.rfftfreq(len(table)), 10 * np.log10(np.maximum(power / largest, 1e-12))
