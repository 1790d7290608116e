"""Figures of encodings, drawn without a screen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .encoding_stats import Table, by_speed, limit_of


def heat_maps(
    tables: Mapping[str, Table],
    path: Path,
    *,
    title: str = "",
    as_is: Collection[str] = (),
    trained: int | None = None,
) -> Path:
    """One heat map (position × dimension) for each encoding, after Figure 4 of the paper.

    Args:
        tables: encodings [position, dimension] by name.
        path: PNG or SVG file to write.
        title: heading of the figure.
        as_is: names of encodings whose dimensions stay in place; those of the others are ordered by
            how fast they change, which makes the structure visible.
        trained: positions that training saw; a line ends them, and the colours are theirs.
    """
    figure, axes = grid(len(tables))
    for axis, (name, table) in zip(axes, tables.items(), strict=False):
        heat_map(figure, axis, table, permute=name not in as_is, trained=trained)
        axis.set_title(name, fontsize=11)
    if title:
        figure.suptitle(title, fontsize=12)
    return save(figure, path)


def grid(count: int, columns: int = 2) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` pairs of axes in rows and columns."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(6.4 * columns, 3.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, list(axes[:count])


def heat_map(
    figure: Figure, axis: Axes, table: Table, *, permute: bool, trained: int | None = None
) -> None:
    """A table as colours, its dimensions as they are or ordered by speed; what was never trained
    may leave the scale.
    """
    known = table[:trained]
    shown = table[:, by_speed(known)] if permute else table
    limit = limit_of(known)
    image = axis.imshow(
        shown, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
    )
    axis.set_xlabel("dimension" + (" (ordered by speed)" if permute else ""), fontsize=9)
    axis.set_ylabel("position", fontsize=9)
    axis.tick_params(labelsize=8)
    if len(known) < len(table):
        axis.axhline(len(known) - 0.5, color="black", linewidth=0.8, linestyle="--")
    figure.colorbar(image, ax=axis, shrink=0.9).ax.tick_params(labelsize=8)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure aside and move it into place, so that no half-written file is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    figure.savefig(name, dpi=130)
    os.chmod(name, 0o644)
    os.replace(name, path)
    return path
