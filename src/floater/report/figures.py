"""Figures as PNG or SVG files: encodings of models, and lines of results."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..files import write_bytes
from ..runs import results
from ..runs.encodings import Encodings
from . import encoding_stats
from .encoding_stats import Matrix

MAX_SITES = 12
"""Number of sites that one figure shows."""
MAX_ROWS = {"heatmap": 4096, "trajectory": 4096, "similarity": 2048}
"""Number of positions that each kind of plot shows; of more, evenly spaced ones are drawn.

A spectrum needs all of them.
"""
_MARKERS = "osD^vPX*"
_COLOURS = 10  # matplotlib's cycle; lines after it are dashed
_INSIDE = 6  # lines whose legend has room inside the axes


def grid(count: int, columns: int = 2) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` axes in rows and columns."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(6.4 * columns, 3.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, list(axes[:count])


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG or SVG, by the ending of the path."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.removeprefix(".").lower(), dpi=130)
    write_bytes(path, buffer.getvalue())
    return path


# Results ------------------------------------------------------------------------------------------


def line_chart(shown: results.Figure, path: Path) -> Path:
    """Draw a figure of results: one line per series, with its intervals."""
    figure, (axis,) = grid(1)
    draw_lines(axis, shown)
    if len(shown.series) > _INSIDE:
        figure.set_size_inches(figure.get_figwidth() + 2, figure.get_figheight())
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axis.legend(fontsize=8)
    return save(figure, path)


def draw_lines(
    axis: Axes, shown: results.Figure, styles: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Draw the lines of a figure of results, with their intervals, title and labels.

    Args:
        axis: where to draw.
        shown: the figure.
        styles: matplotlib's settings of a line, by the name of the series.
    """
    numbers = [x for x in shown.x if isinstance(x, int | float)]
    numeric = len(numbers) == len(shown.x)
    x = np.array(numbers, float) if numeric else np.arange(len(shown.x))
    for number, series in enumerate(shown.series):
        style = {
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": "-" if number < _COLOURS else "--",
            **(styles or {}).get(series.name, {}),
        }
        (line,) = axis.plot(x, _array(series.y), markersize=5, label=series.name, **style)
        if series.low is not None and series.high is not None:
            low, high = _array(series.low), _array(series.high)
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    if not numeric:
        axis.set_xticks(x, [str(name) for name in shown.x])
    axis.set_title(shown.title, fontsize=11)
    axis.set_xlabel(shown.x_label, fontsize=9)
    axis.set_ylabel(shown.y_label, fontsize=9)
    axis.grid(alpha=0.3)


def _array(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


# Encodings ----------------------------------------------------------------------------------------


def heat_maps(
    tables: Mapping[str, Matrix],
    path: Path,
    *,
    title: str = "",
    as_is: Collection[str] = (),
    trained: int | None = None,
) -> Path:
    """Draw one heat map (position × dimension) per encoding, as in Figure 4 of the paper.

    Args:
        tables: encodings [position, dimension] by name.
        path: PNG or SVG file to write.
        title: heading of the figure.
        as_is: names of encodings whose dimensions keep their order; those of the others are
            ordered by how fast they change, which makes the structure visible.
        trained: number of positions that occurred in training; a line marks their end, and the
            colour scale is theirs.
    """
    figure, axes = grid(len(tables))
    for axis, (name, table) in zip(axes, tables.items(), strict=False):
        _draw_heat_map(figure, axis, table, reorder=name not in as_is, trained=trained)
        axis.set_title(name, fontsize=11)
    if title:
        figure.suptitle(title, fontsize=12)
    return save(figure, path)


def check_plot(kind: str, path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed."""
    if kind not in PLOT_KINDS:
        raise ArgumentError(f"`kind` must be one of {', '.join(PLOT_KINDS)}, but is {kind!r}.")
    if path.suffix.lower() not in (".png", ".svg"):
        raise ArgumentError(f"`out` must end in .png or .svg, but is {str(path)!r}.")


def plot(encodings: Encodings, kind: str, path: Path, *, title: str = "") -> Path:
    """Draw the encodings of a model, one plot per site.

    Args:
        encodings: the encodings; only the first `MAX_SITES` sites are drawn.
        kind: heatmap, trajectory, similarity or spectrum.
        path: PNG or SVG file to write.
        title: heading of the figure.
    """
    check_plot(kind, path)
    encodings = encodings.thinned(MAX_ROWS[kind]) if kind in MAX_ROWS else encodings
    sites = encodings.sites[:MAX_SITES]
    figure, axes = grid(len(sites), 3 if len(sites) > 4 else 2)
    for axis, name, table in zip(axes, sites, encodings.tables, strict=False):
        PLOT_KINDS[kind](figure, axis, table, encodings)
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=8)
    if len(encodings.sites) > MAX_SITES:
        title += f" (the first {MAX_SITES} of {len(encodings.sites)} sites)"
    if encodings.every > 1:
        title += f" (one of every {encodings.every} positions)"
    figure.suptitle(title, fontsize=12)
    return save(figure, path)


def _draw_heat_map(
    figure: Figure, axis: Axes, table: Matrix, *, reorder: bool, trained: int | None
) -> None:
    """Draw a table as colours; positions beyond training may exceed the colour scale."""
    seen = table[:trained]
    limit = encoding_stats.color_limit(seen)
    image = axis.imshow(
        table[:, encoding_stats.by_speed(seen)] if reorder else table,
        aspect="auto",
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        interpolation="nearest",
    )
    axis.set_xlabel("dimension" + (" (ordered by speed)" if reorder else ""), fontsize=9)
    axis.set_ylabel("position", fontsize=9)
    axis.tick_params(labelsize=8)
    if len(seen) < len(table):
        axis.axhline(len(seen) - 0.5, color="black", linewidth=0.8, linestyle="--")
    figure.colorbar(image, ax=axis, shrink=0.9).ax.tick_params(labelsize=8)


def _heat_map(figure: Figure, axis: Axes, table: Matrix, encodings: Encodings) -> None:
    _draw_heat_map(figure, axis, table, reorder=True, trained=encodings.trained)
    _label_positions(axis.yaxis, encodings)


def _label_positions(axis: Axis, encodings: Encodings) -> None:
    """Label an axis of rows with the positions that the rows stand for."""
    if encodings.every > 1:
        axis.set_major_formatter(FuncFormatter(lambda row, _: f"{encodings.every * row:.0f}"))


def _trajectory(figure: Figure, axis: Axes, table: Matrix, encodings: Encodings) -> None:
    points, shares = encoding_stats.plane(table)
    x, y = points.T
    axis.plot(x, y, color="0.7", linewidth=0.8, zorder=1)
    positions = encodings.every * np.arange(len(points))
    dots = axis.scatter(x, y, c=positions, cmap="viridis", s=9, zorder=2)
    axis.scatter(x[:1], y[:1], facecolors="none", edgecolors="black", s=60, zorder=3)
    axis.set_xlabel(f"first component ({100 * shares[0]:.0f} % of the variance)", fontsize=8)
    axis.set_ylabel(f"second ({100 * shares[1]:.0f} %)", fontsize=8)
    figure.colorbar(dots, ax=axis, shrink=0.9, label="position").ax.tick_params(labelsize=7)


def _similarity(figure: Figure, axis: Axes, table: Matrix, encodings: Encodings) -> None:
    products = encoding_stats.similarity(table)
    seen = encodings.trained or len(table)  # positions beyond training may dwarf the others
    limit = float(np.abs(products[:seen, :seen]).max()) or 1.0
    image = axis.imshow(products, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axis.set_xlabel("position j", fontsize=8)
    axis.set_ylabel("position i", fontsize=8)
    _label_positions(axis.xaxis, encodings)
    _label_positions(axis.yaxis, encodings)
    if seen < len(table):
        for line in (axis.axhline, axis.axvline):
            line(seen - 0.5, color="black", linewidth=0.8, linestyle="--")
    figure.colorbar(image, ax=axis, shrink=0.9, label="p(i)·p(j)").ax.tick_params(labelsize=7)


def _spectrum(figure: Figure, axis: Axes, table: Matrix, encodings: Encodings) -> None:
    trained = encodings.trained
    seen = table[:trained] if trained is not None and trained > 1 else table
    frequencies, power = encoding_stats.spectrum(seen)
    image = axis.imshow(
        power[:, encoding_stats.by_speed(seen)],
        aspect="auto",
        origin="lower",
        cmap="viridis",
        vmin=-60,
        vmax=0,
        extent=(0, table.shape[1], 0, float(frequencies[-1])),
    )
    axis.set_xlabel("dimension (ordered by speed)", fontsize=8)
    axis.set_ylabel(f"cycles per position, first {len(seen)} positions", fontsize=8)
    figure.colorbar(image, ax=axis, shrink=0.9, label="dB").ax.tick_params(labelsize=7)


PLOT_KINDS: dict[str, Callable[[Figure, Axes, Matrix, Encodings], None]] = {
    "heatmap": _heat_map,
    "trajectory": _trajectory,
    "similarity": _similarity,
    "spectrum": _spectrum,
}
"""What `floater plot` can draw."""
