"""Figure 4 of the paper: heat maps of trained encodings, also beyond the trained length."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..printing import print_text
from ..report.figures import heat_maps
from ..runs.folder import RunFolder
from ..runs.results import Cell, Results, Table
from ..training.extract_encodings import encodings_of
from .base import ReproductionRequest, TrainingItem
from .result_tables import mean
from .scheduler import Runs, job_of
from .variants import HOUR, Sources, Variant

ITEMS_WITH_SAME_RUNS = ("nmt", "rnn")
"""Items on the same data; their finished runs are used instead of new ones."""


class HeatMaps(TrainingItem):
    """Heat maps of the encodings of trained models."""

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

    def reproduce(self, request: ReproductionRequest) -> Results:
        variants, runs = self._shared_runs(request)
        tables = {variant.name: first_site(runs[variant.key][0].path) for variant in variants}
        path = draw(
            tables, request.folder / "heatmaps.png", f"Trained encodings, scale {request.scale}"
        )
        print_text(request.console, f"wrote {path}")
        rows: list[list[Cell]] = []
        for variant in variants:
            steps = [movement(*first_site(run.path)) for run in runs[variant.key]]
            trained, beyond = (
                [value for value in values if value is not None]
                for values in zip(*steps, strict=True)
            )
            rows.append([variant.name, mean(trained), mean(beyond) if beyond else None])
        table = Table(
            title="Difference between neighbouring positions",
            note=(
                "|p(i+1) - p(i)| as a multiple of the mean |p - its mean|, at the first site, over "
                "the positions seen in training and beyond them. The paper says of its figure that "
                "a table is chaotic and hardly changes at high positions, and that a recurrent "
                "network carries little information about positions."
            ),
            columns=["encoding", "trained positions", "beyond them"],
            rows=rows,
        )
        return self.results(request, runs).model_copy(update={"tables": [table]})

    def _shared_runs(self, request: ReproductionRequest) -> tuple[list[Variant], Runs]:
        """Finished runs of other items with the same settings; the others are run here."""
        variants = self.chosen(request)
        runs: Runs = {}
        for variant in variants:
            settings = self.sources.settings(variant, request.scale, request.overrides)
            for item in ITEMS_WITH_SAME_RUNS:
                folder = request.folder.parent / f"{item}-{request.scale}"
                jobs = [job_of(variant, settings, seed, folder) for seed in request.seeds]
                if all(job.finished() for job in jobs):
                    runs.setdefault(variant.key, [RunFolder(job.path) for job in jobs])
        missing = [variant.key for variant in variants if variant.key not in runs]
        if missing:
            _, new_runs = self.runs(dataclasses.replace(request, keys=missing))
            runs |= new_runs
        return variants, {variant.key: runs[variant.key] for variant in variants}


def first_site(path: Path) -> tuple[NDArray[np.float32], int]:
    """Encodings [position, dim] of a run at its first site, and its trained length."""
    encodings = encodings_of(path)
    assert encodings is not None
    return encodings.tables[0], encodings.trained or len(encodings.times)


def draw(encodings: dict[str, tuple[NDArray[np.float32], int]], path: Path, title: str) -> Path:
    """Draw heat maps for the same positions; sinusoids keep the order of their dimensions.

    Args:
        encodings: a table [position, dim] and its trained length, by name.
        path: file to write.
        title: of the figure.
    """
    length = min(len(table) for table, _ in encodings.values())
    return heat_maps(
        {name: table[:length] for name, (table, _) in encodings.items()},
        path,
        as_is=[name for name in encodings if name.lower().startswith("sinusoid")],
        title=title,
        trained=min(trained for _, trained in encodings.values()),
    )


def movement(table: NDArray[np.float32], trained: int) -> tuple[float, float | None]:
    """Mean distance of neighbours relative to the spread of the trained positions.

    Args:
        table: encodings [position, dim].
        trained: number of positions seen in training.

    Returns:
        The distance within the trained positions, and beyond them if the table is longer.
    """
    spread = float(np.linalg.norm(table[:trained] - table[:trained].mean(0), axis=1).mean()) or 1.0
    distances = np.linalg.norm(np.diff(table, axis=0), axis=1) / spread
    beyond = distances[trained - 1 :]
    return float(distances[: trained - 1].mean()), float(beyond.mean()) if len(beyond) else None
