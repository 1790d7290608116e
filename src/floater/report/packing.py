"""Make encodings small enough for a page: round, take differences along time, and compress."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.encodings import Encodings
from .encoding_stats import Matrix, by_speed, flatness
from .load import number

BUDGET = 2_200_000
"""Number of characters that the encodings of all runs may take together."""
_PRECISIONS = (
    (8191, 1),
    (2047, 1),
    (511, 1),
    (127, 1),
    (127, 2),
    (127, 4),
    (127, 8),
    (127, 16),
)
"""From fine to coarse: quantization levels on each side of zero, and the stride of dimensions."""


def pack(encodings: Encodings, budget: int) -> dict[str, Any]:
    """Encodings as JSON values for the page, at the finest precision that fits.

    Args:
        encodings: the encodings.
        budget: number of characters; exceeded only if the coarsest precision does not fit.
    """
    sites = len(encodings.sites)
    middle = encodings.tables[sites // 2 :][:1]
    for levels, step in _PRECISIONS:
        # one site tells cheaply that all sites would not fit
        if sites * len(_compress(middle, levels, step)[1]) > 1.2 * budget:
            continue
        scales, data = _compress(encodings.tables, levels, step)
        if len(data) <= budget:
            break
    else:
        scales, data = _compress(encodings.tables, levels, step)
    tables = encodings.tables[:, :, ::step]
    times = encodings.times
    return {
        "sites": list(encodings.sites),
        "length": tables.shape[1],
        "dim": tables.shape[2],
        "step": step,
        "delta": float(times[1] - times[0]) if len(times) > 1 else 0.0,
        "trained": encodings.trained,
        "ordered": encodings.kind in ("own", "sinusoidal"),
        "scales": [float(scale) for scale in scales],
        "orders": [by_speed(table).tolist() for table in tables],
        "data": data,
    }


def _compress(values: Matrix, levels: int, step: int) -> tuple[Matrix, str]:
    """The value of one level at each site, and the steps from position to position as text."""
    tables = values[:, :, ::step].astype(np.float64)
    scales = np.maximum(np.abs(tables).max((1, 2)), 1e-30) / levels
    quantized = np.rint(tables / scales[:, None, None]).astype(np.int32)
    steps = np.diff(quantized, axis=1, prepend=0)
    # zigzag code: small steps of either sign become small numbers
    coded = ((steps << 1) ^ (steps >> 31)).astype("<u2")
    planes = coded.view(np.uint8).reshape(-1, 2).T  # all low bytes, then all high ones
    compressed = zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)
    return scales, base64.b64encode(compressed).decode("ascii")


def unpack(packed: dict[str, Any]) -> NDArray[np.float64]:
    """The tables [site, position, dimension] that the page decodes."""
    compressed = base64.b64decode(packed["data"])
    planes = np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(2, -1)
    coded = planes[0].astype(np.int64) + 256 * planes[1].astype(np.int64)
    shape = len(packed["sites"]), packed["length"], packed["dim"]
    steps = ((coded >> 1) ^ -(coded & 1)).reshape(shape)
    return np.asarray(steps.cumsum(1) * np.asarray(packed["scales"])[:, None, None])


def site_statistics(encodings: Encodings) -> list[list[str | float]]:
    """One row per site.

    Returns:
        The name of the site, |p| at the first position, its mean and maximum, the mean step, and
        the share of the variance in the plane of the first two components, in per cent.
    """
    rows: list[list[str | float]] = []
    for name, table in zip(encodings.sites, encodings.tables.astype(np.float64), strict=True):
        norms = np.linalg.norm(table, axis=1)
        steps = np.linalg.norm(np.diff(table, axis=0), axis=1) if len(table) > 1 else np.zeros(1)
        share = 100 * flatness(table)
        values = (norms[0], norms.mean(), norms.max(), steps.mean(), share)
        rows.append([name, *(number(float(value)) or 0.0 for value in values)])
    return rows
