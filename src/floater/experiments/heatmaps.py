"""Figure 4 of the paper: what trained encodings look like, and whether they still move past the
trained length.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..report.figures import heat_maps
from ..runs.folder import RunFolder
from ..runs.results import Cell, Results, Table
from ..training.extract_encodings import encodings_of
from .base import Request, TrainingItem
from .result_tables import mean
from .scheduler import Runs, job_of
from .variants import HOUR, Sources, Variant

KIN = ("nmt", "rnn")
"""Items of the same data whose runs serve here too, where they are finished."""


class HeatMaps(TrainingItem):
    """Encodings of trained models."""

    name = "heatmaps"
    title = "Encodings of trained models (Figure 4)"
    sources = Sources(
        "translation/multi30k-{key}.yaml", "translation/wmt14/en-de-base-{key}.yaml", hurried=HOUR
    )
    variants = (
        Variant("sinusoidal", "Sinusoidal"),
        Variant("learned", "Position embedding"),
        Variant("flow-blocks", "FLOATER"),
        Variant("recurrent-1-scalar", "RNN"),
    )

    def reproduce(self, request: Request) -> Results:
        variants, runs = self._borrowed(request)
        tables = {variant.name: first_site(runs[variant.key][0].path) for variant in variants}
        path = draw(
            tables, request.folder / "heatmaps.png", f"Trained encodings, scale {request.scale}"
        )
        request.console.print(f"drew {path}", highlight=False, markup=False)
        rows: list[list[Cell]] = []
        for variant in variants:
            steps = [movement(*first_site(run.path)) for run in runs[variant.key]]
            seen, past = (
                [value for value in values if value is not None]
                for values in zip(*steps, strict=True)
            )
            rows.append([variant.name, mean(seen), mean(past) if past else None])
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
        return self.results(request, runs).model_copy(update={"tables": [table]})

    def _borrowed(self, request: Request) -> tuple[list[Variant], Runs]:
        """The runs of other items where all are finished with these very settings, else our own."""
        variants = self.chosen(request)
        found: Runs = {}
        for variant in variants:
            settings = self.sources.settings(variant, request.scale, request.overrides)
            for item in KIN:
                folder = request.folder.parent / f"{item}-{request.scale}"
                jobs = [job_of(variant, settings, seed, folder) for seed in request.seeds]
                if all(job.finished() for job in jobs):
                    found.setdefault(variant.key, [RunFolder(job.path) for job in jobs])
        missing = [variant.key for variant in variants if variant.key not in found]
        if missing:
            _, made = self.runs(dataclasses.replace(request, keys=missing))
            found |= made
        return variants, {variant.key: found[variant.key] for variant in variants}


def first_site(path: Path) -> tuple[NDArray[np.float32], int]:
    """Encodings [position, dim] of a run at its first site, and how many positions training saw."""
    encodings = encodings_of(path)
    assert encodings is not None
    return encodings.tables[0], encodings.trained or len(encodings.times)


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
