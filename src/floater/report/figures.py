"""Figures of encodings, drawn without a screen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

Table = NDArray[np.floating]


def heat_maps(tables: Mapping[str, Table], path: Path, *, title: str = "", as_is: Collection[str] = ()) -> Path:
    """One heat map (position × dimension) for each encoding, after Figure 4 of the paper.

    Args:
        tables: encodings [position, dimension] by name.
        path: PNG or SVG file to write.
        title: heading of the figure.
        as_is: names of encodings whose dimensions stay in place; those of the others are ordered by how fast they
            change, which makes the structure visible.
    """
    columns = 2 if len(tables) > 1 else 1
    rows = -(-len(tables) // columns)
    figure = Figure(figsize=(6.4 * columns, 3.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (name, table) in zip(axes, tables.items(), strict=False):
        permute = name not in as_is
        shown = table[:, _by_speed(table)] if permute else table
        limit = float(np.quantile(np.abs(shown), 0.995)) or 1.0
        image = axis.imshow(shown, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("dimension" + (" (ordered by speed)" if permute else ""), fontsize=9)
        axis.set_ylabel("position", fontsize=9)
        axis.tick_params(labelsize=8)
        figure.colorbar(image, ax=axis, shrink=0.9).ax.tick_params(labelsize=8)
    for axis in axes[len(tables) :]:
        axis.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=12)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure aside and move it into place, so that no half-written file is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    figure.savefig(name, dpi=130)
    os.chmod(name, 0o644)
    os.replace(name, path)
    return path


def _by_speed(table: Table) -> NDArray[np.intp]:
    change = np.abs(np.diff(table, axis=0)).mean(0) if len(table) > 1 else np.zeros(table.shape[1])
    spread = table.std(0)
    return np.argsort(-change / np.maximum(spread, 1e-12), kind="stable")
