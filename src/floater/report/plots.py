"""`floater plot`: one kind of figure for the sites of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..errors import ArgumentError
from ..runs.encodings import Encodings
from . import encoding_stats
from .encoding_stats import Table
from .figures import grid, heat_map, save

MOST = 12
"""Sites that one figure shows."""
ROWS = {"heatmap": 4096, "trajectory": 4096, "similarity": 2048}
"""Encodings that a figure has room for; of more than these, evenly spaced ones are drawn.

A spectrum needs all of them.
"""


def plot(positions: Encodings, kind: str, path: Path, *, title: str = "") -> Path:
    """Draw the sites of a model.

    Args:
        positions: the encodings; the first sites are drawn where there are more than fit.
        kind: heatmap, trajectory, similarity or spectrum.
        path: PNG or SVG file to write.
        title: heading of the figure.
    """
    check_plot(kind, path)
    positions = positions.thinned(ROWS[kind]) if kind in ROWS else positions
    shown = positions.sites[:MOST]
    figure, axes = grid(len(shown), 3 if len(shown) > 4 else 2)
    for axis, name, table in zip(axes, shown, positions.tables, strict=False):
        KINDS[kind](figure, axis, table, positions)
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=8)
    more = (
        f" (the first {MOST} of {len(positions.sites)} sites)"
        if len(positions.sites) > MOST
        else ""
    )
    if positions.every > 1:
        more += f" (every {positions.every}. position)"
    figure.suptitle(f"{title}{more}", fontsize=12)
    return save(figure, path)


def check_plot(kind: str, path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed."""
    if kind not in KINDS:
        raise ArgumentError(f"`kind` must be one of {', '.join(KINDS)}, but is {kind!r}.")
    if path.suffix.lower() not in (".png", ".svg"):
        raise ArgumentError(f"`out` must end in .png or .svg, but is {str(path)!r}.")


def _heat_map(figure: Figure, axis: Axes, table: Table, positions: Encodings) -> None:
    heat_map(figure, axis, table, permute=True, trained=positions.trained)
    _count(axis.yaxis, positions)


def _count(axis: Axis, positions: Encodings) -> None:
    """Let an axis that counts rows name the positions they stand for."""
    if positions.every > 1:
        axis.set_major_formatter(FuncFormatter(lambda row, _: f"{positions.every * row:.0f}"))


def _trajectory(figure: Figure, axis: Axes, table: Table, positions: Encodings) -> None:
    points, shares = encoding_stats.plane(table)
    x, y = points.T
    axis.plot(x, y, color="0.7", linewidth=0.8, zorder=1)
    dots = axis.scatter(
        x, y, c=positions.every * np.arange(len(points)), cmap="viridis", s=9, zorder=2
    )
    axis.scatter(x[:1], y[:1], facecolors="none", edgecolors="black", s=60, zorder=3)
    axis.set_xlabel(f"first component ({100 * shares[0]:.0f} % of the variance)", fontsize=8)
    axis.set_ylabel(f"second ({100 * shares[1]:.0f} %)", fontsize=8)
    figure.colorbar(dots, ax=axis, shrink=0.9, label="position").ax.tick_params(labelsize=7)


def _similarity(figure: Figure, axis: Axes, table: Table, positions: Encodings) -> None:
    products = encoding_stats.similarity(table)
    known = positions.trained or len(table)  # what was never trained may dwarf the rest
    limit = float(np.abs(products[:known, :known]).max()) or 1.0
    image = axis.imshow(products, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axis.set_xlabel("position j", fontsize=8)
    axis.set_ylabel("position i", fontsize=8)
    for one in (axis.xaxis, axis.yaxis):
        _count(one, positions)
    if known < len(table):
        for line in (axis.axhline, axis.axvline):
            line(known - 0.5, color="black", linewidth=0.8, linestyle="--")
    figure.colorbar(image, ax=axis, shrink=0.9, label="p(i)·p(j)").ax.tick_params(labelsize=7)


def _spectrum(figure: Figure, axis: Axes, table: Table, positions: Encodings) -> None:
    known = (
        table[: positions.trained]
        if positions.trained is not None and positions.trained > 1
        else table
    )
    frequencies, power = encoding_stats.spectrum(known)
    shown = power[:, encoding_stats.by_speed(known)]
    extent = (0, table.shape[1], 0, float(frequencies[-1]))
    image = axis.imshow(
        shown, aspect="auto", origin="lower", cmap="viridis", vmin=-60, vmax=0, extent=extent
    )
    axis.set_xlabel("dimension (ordered by speed)", fontsize=8)
    axis.set_ylabel(f"cycles a position, of the first {len(known)}", fontsize=8)
    figure.colorbar(image, ax=axis, shrink=0.9, label="dB").ax.tick_params(labelsize=7)


KINDS: dict[str, Callable[[Figure, Axes, Table, Encodings], None]] = {
    "heatmap": _heat_map,
    "trajectory": _trajectory,
    "similarity": _similarity,
    "spectrum": _spectrum,
}
