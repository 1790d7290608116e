"""Encodings small enough for a page: rounded, differenced along time, and deflated."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from ..runs.encodings import Encodings
from .encoding_stats import Table, by_speed, flatness
from .load import number

BUDGET = 2_200_000
"""Characters that the encodings of all runs may take together."""
_WAYS = ((8191, 1), (2047, 1), (511, 1), (127, 1), (127, 2), (127, 4), (127, 8), (127, 16))
"""How coarse: levels on each side of zero, and which dimensions are left out (every n-th stays)."""


def pack(positions: Encodings, budget: int) -> dict[str, Any]:
    """Encodings as plain data for the page, in at most about `budget` characters where the coarsest
    way allows.
    """
    sites, middle = len(positions.sites), positions.tables[len(positions.sites) // 2 :][:1]
    for levels, step in _WAYS:
        if (
            sites * len(_deflated(middle, levels, step)[1]) > 1.2 * budget
        ):  # a look at one site saves work on all
            continue
        scales, data = _deflated(positions.tables, levels, step)
        if len(data) <= budget:
            break
    else:
        scales, data = _deflated(positions.tables, levels, step)
    tables = positions.tables[:, :, ::step]
    return {
        "sites": list(positions.sites),
        "length": tables.shape[1],
        "dim": tables.shape[2],
        "step": step,
        "delta": float(positions.times[1] - positions.times[0])
        if len(positions.times) > 1
        else 0.0,
        "trained": positions.trained,
        "ordered": positions.kind in ("own", "sinusoidal"),
        "scales": [float(scale) for scale in scales],
        "orders": [by_speed(table).tolist() for table in tables],
        "data": data,
    }


def _deflated(values: Table, levels: int, step: int) -> tuple[Table, str]:
    """The value of one level at each site, and the steps from position to position as text."""
    tables = values[:, :, ::step].astype(np.float64)
    scales = np.maximum(np.abs(tables).max((1, 2)), 1e-30) / levels
    whole = np.rint(tables / scales[:, None, None]).astype(np.int32)
    steps = np.diff(whole, axis=1, prepend=0)
    coded = ((steps << 1) ^ (steps >> 31)).astype(
        "<u2"
    )  # small steps of either sign become small numbers
    planes = coded.view(np.uint8).reshape(-1, 2).T  # all low bytes, then all high ones
    return scales, base64.b64encode(
        zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)
    ).decode("ascii")


def unpack(packed: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the page makes of it: tables [site, position, dimension]."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8).reshape(
        2, -1
    )
    coded = planes[0].astype(np.int64) + 256 * planes[1].astype(np.int64)
    steps = ((coded >> 1) ^ -(coded & 1)).reshape(
        len(packed["sites"]), packed["length"], packed["dim"]
    )
    return np.asarray(steps.cumsum(1) * np.asarray(packed["scales"])[:, None, None])


def site_facts(positions: Encodings) -> list[list[str | float]]:
    """A row of numbers for each site: |p| at the start, its mean and maximum, the mean step, the
    share of the plane.
    """
    rows: list[list[str | float]] = []
    for name, table in zip(positions.sites, positions.tables.astype(np.float64), strict=True):
        sizes = np.linalg.norm(table, axis=1)
        moves = np.linalg.norm(np.diff(table, axis=0), axis=1) if len(table) > 1 else np.zeros(1)
        share = 100 * flatness(table)
        rows.append(
            [
                name,
                *(
                    number(float(value)) or 0.0
                    for value in (sizes[0], sizes.mean(), sizes.max(), moves.mean(), share)
                ),
            ]
        )
    return rows
