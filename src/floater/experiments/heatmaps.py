"""Figure 4 of the paper: what trained encodings look like, and whether they still move past the
trained length.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..report.figures import heat_maps
from ..runs.results import Cell, Results, Table
from ..training.extract_encodings import positions_of
from ..runs.folder import RunFolder
from .arms import HOUR, Arm, Sources
from .base import Order, Training
from .scheduler import Runs, job_of
from .tables import mean

KIN = ("nmt", "rnn")
"""Items of the same data whose runs serve here too, where they are finished."""


class HeatMaps(Training):
    """Encodings of trained models."""

    name = "heatmaps"
    title = "Encodings of trained models (Figure 4)"
    sources = Sources(
        "translation/multi30k-{key}.yaml", "translation/wmt14/en-de-base-{key}.yaml", hurried=HOUR
    )
    arms = (
        Arm("sinusoidal", "Sinusoidal"),
        Arm("learned", "Position embedding"),
        Arm("flow-blocks", "FLOATER"),
        Arm("recurrent-1-scalar", "RNN"),
    )

    def reproduce(self, order: Order) -> Results:
        arms, runs = self._borrowed(order)
        tables = {arm.name: first_site(runs[arm.key][0].path) for arm in arms}
        path = draw(
            tables, order.folder / "heatmaps.png", f"Trained encodings, scale {order.scale}"
        )
        order.console.print(f"drew {path}", highlight=False, markup=False)
        rows: list[list[Cell]] = []
        for arm in arms:
            steps = [movement(*first_site(run.path)) for run in runs[arm.key]]
            seen, past = (
                [value for value in values if value is not None]
                for values in zip(*steps, strict=True)
            )
            rows.append([arm.name, mean(seen), mean(past) if past else None])
        table = Table(
            title="How much neighbouring positions differ",
            note=(
                "|p(i+1) - p(i)| in multiples of the mean |p - its mean|, at the first site, over "
                "positions that training saw and past them. The paper says of its figure that a "
                "table is chaotic and stands still at high positions, and that the recurrent "
                "network carries little position."
            ),
            columns=["encoding", "trained positions", "past them"],
            rows=rows,
        )
        return self.results(order, runs).model_copy(update={"tables": [table]})

    def _borrowed(self, order: Order) -> tuple[list[Arm], Runs]:
        """The runs of other items where all are finished with these very settings, else our own."""
        arms = self.chosen(order)
        found: Runs = {}
        for arm in arms:
            settings = self.sources.settings(arm, order.scale, order.overrides)
            for item in KIN:
                folder = order.folder.parent / f"{item}-{order.scale}"
                jobs = [job_of(arm, settings, seed, folder) for seed in order.seeds]
                if all(job.finished() for job in jobs):
                    found.setdefault(arm.key, [RunFolder(job.path) for job in jobs])
        missing = [arm.key for arm in arms if arm.key not in found]
        if missing:
            _, made = self.runs(dataclasses.replace(order, keys=missing))
            found |= made
        return arms, {arm.key: found[arm.key] for arm in arms}


def first_site(path: Path) -> tuple[NDArray[np.float32], int]:
    """Encodings [position, dim] of a run at its first site, and how many positions training saw."""
    found = positions_of(path)
    assert found is not None
    return found.tables[0], found.trained or len(found.times)


def draw(found: dict[str, tuple[NDArray[np.float32], int]], path: Path, title: str) -> Path:
    """The heat maps of encodings and how many positions training saw; a sinusoid's dimensions stay
    in place, as in the paper.
    """
    length = min(len(table) for table, _ in found.values())  # the same positions for all
    return heat_maps(
        {name: table[:length] for name, (table, _) in found.items()},
        path,
        as_is=[name for name in found if name.lower().startswith("sinusoid")],
        title=title,
        trained=min(trained for _, trained in found.values()),
    )


def movement(table: NDArray[np.float32], trained: int) -> tuple[float, float | None]:
    """Mean distance of neighbours, relative to the spread of the trained positions: within these,
    and past them if it goes on.
    """
    spread = float(np.linalg.norm(table[:trained] - table[:trained].mean(0), axis=1).mean()) or 1.0
    distances = np.linalg.norm(np.diff(table, axis=0), axis=1) / spread
    past = distances[trained - 1 :]
    return float(distances[: trained - 1].mean()), float(past.mean()) if len(past) else None
