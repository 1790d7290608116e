"""The rows of benchmarks/solver.py, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from contestants import DELTA, DIM, TRAJECTORIES


@dataclass
class Row:
    """The measurements of one method at one number of positions; None if not measured."""

    positions: int
    key: str
    label: str
    evaluations: int | None = None
    state_error: float | None = None
    gradient_error: float | None = None
    seconds: list[Any] = field(default_factory=list)  # one per round; for ours, a list per round
    median_seconds: float | None = None
    ratios: list[float] = field(default_factory=list)
    ratio_median: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    tolerance: float | None = None
    tolerances_tried: list[dict[str, float | int | None]] = field(default_factory=list)
    load_average: float | None = None  # after the rounds; above `threads`, something else ran
    note: str | None = None


def table(rows: Sequence[Row]) -> Table:
    result = Table(
        title=f"Forward + backward, {TRAJECTORIES} trajectories × {DIM} dimensions, Δ = {DELTA}"
    )
    result.add_column("positions", justify="right")
    result.add_column("method")
    for name in (
        "evaluations",
        "state error",
        "gradient error",
        "time",
        "ratio",
        "min-max",
        "runs",
    ):
        result.add_column(name, justify="right")
    for place, row in enumerate(rows):
        last = place + 1 == len(rows) or rows[place + 1].positions != row.positions
        result.add_row(*_cells(row), end_section=last)
    return result


def _cells(row: Row) -> list[str]:
    evaluations = "" if row.evaluations is None else f"{row.evaluations:,}"
    errors = [
        "" if error is None else f"{error:.1e}" for error in (row.state_error, row.gradient_error)
    ]
    head = [f"{row.positions:,}", row.label, evaluations, *errors]
    if row.median_seconds is None:
        return [*head, row.note or "not run", "", "", "0"]
    seconds = (
        f"{row.median_seconds:.1f} s"
        if row.median_seconds >= 10
        else f"{1e3 * row.median_seconds:,.0f} ms"
    )
    if row.ratio_median is None:
        return [*head, seconds, "1", "", str(sum(map(len, row.seconds)))]
    spread = f"{row.ratio_min:.1f}-{row.ratio_max:.1f}"
    return [*head, seconds, f"{row.ratio_median:.1f}", spread, str(len(row.seconds))]
