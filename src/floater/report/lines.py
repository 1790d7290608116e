"""Figures of results as PNG or SVG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..runs.results import Figure
from .figures import grid, save

_MARKS = "osD^vPX*"


def line_chart(figure: Figure, path: Path) -> Path:
    """Draw a figure of results: one line a series, with its intervals."""
    drawn, (axis,) = grid(1)
    places = np.arange(len(figure.x))
    numbers = [x for x in figure.x if isinstance(x, int | float)]
    x = np.array(numbers, float) if len(numbers) == len(figure.x) else places
    for number, series in enumerate(figure.series):
        y = np.array([np.nan if value is None else value for value in series.y])
        (line,) = axis.plot(
            x, y, marker=_MARKS[number % len(_MARKS)], markersize=5, label=series.name
        )
        if series.low is not None and series.high is not None:
            low, high = (
                np.array([np.nan if value is None else value for value in ends])
                for ends in (series.low, series.high)
            )
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    if x is places:
        axis.set_xticks(places, [str(label) for label in figure.x])
    axis.set_title(figure.title, fontsize=11)
    axis.set_xlabel(figure.x_label, fontsize=9)
    axis.set_ylabel(figure.y_label, fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return save(drawn, path)
