"""Irregular series: every encoder on the same body, on real times and on indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from ..recipes import read
from ..runs.folder import RunFolder
from ..runs.results import Table
from .result_tables import score
from .scheduler import run_all
from .timed import NAMES, POSITIONS, TimedComparison
from .variants import Scale, Variant, config_file

PHASE_UPDATES = 500
"""Updates after which a flow on real times tells the waves apart."""


class SeriesTable(TimedComparison):
    """Mortality of intensive-care stays (PhysioNet 2012); at the scale smoke, generated waves."""

    name = "series"
    title = "Irregular series by position encoding"

    @property
    def anchors(self) -> str:
        return (
            "Published on PhysioNet 2012 with all 8,000 stays: AUROC GRU-D 81.8, Latent ODE 82.9, "
            "ODE-RNN 83.3, mTAND 85.8; not comparable."
        )

    def base_settings(self, scale: Scale) -> dict[str, Any]:
        if scale == "small":
            return read(config_file("series/physionet2012.yaml"))
        return phases()


def phases(updates: int = PHASE_UPDATES) -> dict[str, Any]:
    """Settings of a run on generated series that only real times can tell apart."""
    return {
        "task": "series",
        "data": {"synthetic": {}},
        "clock": {"origin": 0.0},
        "model": {"preset": "tiny", "dropout": 0.0},
        "training": {
            "updates": updates,
            "lr": 0.003,
            "take": "last",
            "evaluate_every": updates,
            "save_every": updates,
            "threads": 1,
        },
    }


def real_times(
    out: Path, console: Console, *, updates: int, workers: int
) -> tuple[Table, list[RunFolder]]:
    """Train a flow on real times and one on indices on generated series; a table of both.

    Args:
        out: folder for the runs.
        console: where to print progress.
        updates: of each run.
        workers: number of runs at the same time.
    """
    keys = ("flow-input", "flow-index")
    settings = {key: {**phases(updates), "positions": POSITIONS[key]} for key in keys}
    variants = [Variant(key, NAMES[key]) for key in keys]
    runs = run_all(variants, settings, [0], out, workers=workers, console=console)
    table = Table(
        title="Which of two waves? Irregular samples, in %",
        note=(
            "A sine or its negative, 16 values at random times that start anywhere in a period: "
            "without the times, both classes look the same (chance: 50)."
        ),
        columns=["positions", "accuracy", "auroc", "sec"],
        rows=[
            [
                NAMES[key],
                score(run, "accuracy"),
                score(run, "auroc"),
                round(run.facts()["training_seconds"]),
            ]
            for key, (run,) in runs.items()
        ],
    )
    return table, [run for (run,) in runs.values()]
