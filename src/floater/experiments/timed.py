"""Encoders on real times and on indices, on the same body: what `series` and its like compare."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import ArgumentError
from ..recipes import merge, with_overrides
from ..runs.comparison import VariantScore
from ..runs.encodings import Encodings
from ..runs.folder import RunFolder
from ..runs.results import Cell, Figure, Mean, Results, Series, Table
from ..tasks import task_from
from ..tasks.timed.attention import attention_by_distance
from ..tasks.timed.model import TimedModel
from ..tasks.timed.task import TimedTask
from ..tasks.understanding.comparison_tables import digits_of
from .base import Item, ReproductionRequest
from .result_tables import fact, scored
from .scheduler import Runs, run_all
from .variants import RANDOM_FLOW, Scale, Variant

POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"encoder": {"kind": "sinusoidal"}},
    "flow-input": {"encoder": RANDOM_FLOW},
    "flow-blocks": {"encoder": RANDOM_FLOW, "sites": "blocks"},
    "flow-qkv": {"encoder": RANDOM_FLOW, "sites": "qkv"},
    "rotary-flow": {"rotary": True, "encoder": RANDOM_FLOW, "sites": "qkv"},
    "flow-index": {"encoder": RANDOM_FLOW, "times": "index"},
    "sinusoidal-index": {"encoder": {"kind": "sinusoidal"}, "times": "index"},
    "fourier": {"encoder": {"kind": "fourier"}},
    "rotary": {"encoder": {"kind": "rotary"}, "sites": "qkv"},
    "learned-index": {
        "encoder": {"kind": "learned", "max_length": 512, "beyond": "clamp"},
        "times": "index",
    },
    "none": {"encoder": {"kind": "none"}},
}
"""`positions` of each variant; the first is the base of the paired tests."""
NAMES = {
    "sinusoidal": "sinusoidal, real times",
    "flow-input": "flow at the input, real times",
    "flow-blocks": "flow at all blocks, real times",
    "flow-qkv": "flow at q, k, v, real times",
    "rotary-flow": "rotary + flow at q, k, v, real times",
    "flow-index": "flow at the input, indices",
    "sinusoidal-index": "sinusoidal, indices",
    "fourier": "Fourier features, real times",
    "rotary": "rotary, real times",
    "learned-index": "learned table, indices",
    "none": "no positions",
}
_FLOWS = ("flow-input", "flow-blocks", "flow-qkv", "rotary-flow")
_BINS = 12  # of distances in time
_SEQUENCES = 64  # over which attention is averaged


class EncoderComparison(Item):
    """A table of encoders on one task. With `data.folds`, the seeds of a request are the folds."""

    trains = "small Transformers"
    positions: ClassVar[Mapping[str, Mapping[str, Any]]] = POSITIONS
    """`positions` of each variant; the first is the base of the paired tests."""
    names: ClassVar[Mapping[str, str]] = NAMES
    """What tables call each variant."""
    flows: ClassVar[tuple[str, ...]] = _FLOWS
    """Variants of which the best is compared with the best other one."""

    @abstractmethod
    def base_settings(self, scale: Scale) -> dict[str, Any]:
        """The settings that all variants share at a scale, without positions."""

    @property
    @abstractmethod
    def anchors(self) -> str:
        """Published numbers for the same kind of task."""

    def settings(self, request: ReproductionRequest) -> dict[str, dict[str, Any]]:
        """The checked settings of each variant of a request."""
        if request.scale == "paper":
            raise ArgumentError(
                f"`--scale` must be smoke or small for {self.name}, which is not in the paper, but "
                "is paper."
            )
        unknown = [key for key in request.keys if key not in self.positions]
        if unknown:
            raise ArgumentError(
                f"`--variants` must be among {', '.join(self.positions)}, but has {unknown[0]!r}."
            )
        base = self.base_settings(request.scale)
        settings = {}
        for key in request.keys or self.positions:
            own = {**base, "positions": self.positions[key]}
            settings[key] = with_overrides(own, request.overrides)
            self._task(settings[key])
        return settings

    def _task(self, settings: Mapping[str, Any]) -> TimedTask[Any, Any]:
        task = task_from(settings)
        assert isinstance(task, TimedTask)
        return task

    def check(self, request: ReproductionRequest) -> Results:
        rows: list[list[Cell]] = [
            [self.names[key], self._task(settings).config.positions.described()]
            for key, settings in self.settings(request).items()
        ]
        title = f"{self.title}, scale {request.scale}: checked, not trained"
        table = Table(title=title, columns=["variant", "positions"], rows=rows)
        return Results(item=self.name, scale=request.scale, title=self.title, tables=[table])

    def follow(self, request: ReproductionRequest) -> None:
        self.runs(request, self.settings(request))

    def runs(self, request: ReproductionRequest, settings: Mapping[str, Mapping[str, Any]]) -> Runs:
        """Run all variants, fold by fold where there are folds."""
        variants = [Variant(key, self.names[key]) for key in settings]
        folds = next(iter(settings.values()))["data"].get("folds")
        if folds is None:
            return self._run(request, variants, settings, request.seeds)
        beyond = [seed for seed in request.seeds if seed >= folds]
        if beyond:
            raise ArgumentError(
                f"`--seeds` must be folds, 0 to {folds - 1}, for {self.name} at this scale, but "
                f"has {beyond[0]}."
            )
        runs: Runs = {key: [] for key in settings}
        for fold in request.seeds:
            on_fold = {key: merge(own, {"data": {"fold": fold}}) for key, own in settings.items()}
            for key, finished in self._run(request, variants, on_fold, [fold]).items():
                runs[key] += finished
        return runs

    def _run(
        self,
        request: ReproductionRequest,
        variants: Sequence[Variant],
        settings: Mapping[str, Mapping[str, Any]],
        seeds: Sequence[int],
    ) -> Runs:
        return run_all(
            variants,
            settings,
            seeds,
            request.folder,
            workers=request.workers,
            console=request.console,
        )

    def reproduce(self, request: ReproductionRequest) -> Results:
        settings = self.settings(request)
        runs = self.runs(request, settings)
        task = self._task(next(iter(settings.values())))
        base, *_ = settings
        paired = _on_test(task.compare(runs)) if len(runs) > 1 else []
        differences = [_differences(paired, base, self.names)] if paired else []
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            summary=self._summary(task, runs),
            tables=[self._table(task, runs), *differences],
            figures=self._figures(settings, runs),
            runs=[
                Path(os.path.relpath(run.path, request.folder)).as_posix()
                for each in runs.values()
                for run in each
            ],
        )

    def _table(self, task: TimedTask[Any, Any], runs: Runs) -> Table:
        measures = list(task.measures)
        first = next(iter(runs.values()))
        examples = sum(run.scores().sets["test"].examples or 0 for run in first)
        folds = "folds" if task.config.dump()["data"].get("folds") else "seeds"
        return Table(
            title=self.title,
            note=(
                f"{first[0].scores().sets['test'].data['from']}, {examples:,} examples over "
                f"{len(first)} {folds}; mean ± deviation. {self.anchors}"
            ),
            columns=["positions", *measures, "position parameters", "training, s"],
            rows=[
                [
                    self.names[key],
                    *(_cell(each, measure) for measure in measures),
                    fact(each, "position_parameters"),
                    fact(each, "training_seconds"),
                ]
                for key, each in runs.items()
            ],
        )

    def _summary(self, task: TimedTask[Any, Any], runs: Runs) -> list[str]:
        main, sign = task.main, 1 if task.more_is_better else -1
        means = {key: scored(each, main) for key, each in runs.items()}
        values = {key: value.mean for key, value in means.items() if value is not None}
        flows = {key: value for key, value in values.items() if key in self.flows}
        others = {key: value for key, value in values.items() if key not in self.flows}
        if not flows or not others:
            return []
        flow = max(flows, key=lambda key: sign * flows[key])
        other = max(others, key=lambda key: sign * others[key])
        rows = _on_test(task.compare({other: runs[other], flow: runs[flow]}))
        row = next(row for row in rows if row.measure == main)
        digits = digits_of(main)
        return [
            f"Best flow on real times: {self.names[flow]}, {main} {flows[flow]:.{digits}f}; best "
            f"other: {self.names[other]}, {others[other]:.{digits}f}; difference "
            f"{row.difference:+.{digits}f} (95 % {row.low:+.{digits}f} to "
            f"{row.high:+.{digits}f}, p = {row.p_value:.3f})."
        ]

    # Figures --------------------------------------------------------------------------------------

    def _figures(self, settings: Mapping[str, Mapping[str, Any]], runs: Runs) -> list[Figure]:
        tasks = {key: self._task(own) for key, own in settings.items()}
        folders = {key: each[0] for key, each in runs.items() if each[0].model.is_dir()}
        models = {}
        for key, folder in folders.items():
            model, prepared = tasks[key].load(folder.model)
            assert isinstance(model, TimedModel)
            models[key] = (model, prepared)
        if not models:
            return []
        first = tasks[next(iter(models))]
        split = first.splits()["test"]
        spans = [model.config.prepared["span"] for model, _ in models.values()]
        edges = np.linspace(0, max(spans), _BINS + 1)
        attention = []
        for key, (model, prepared) in models.items():
            features = tasks[key].encode(split, prepared, training=False)
            collate = tasks[key].collate(prepared)
            chosen = range(min(len(features), _SEQUENCES))
            batches = (collate([features[number]]) for number in chosen)
            means = attention_by_distance(model, batches, edges)
            attention.append(Series(name=self.names[key], y=means))
        unit = _unit(first)
        middles: list[str | int | float] = [
            round(float(middle), 3) for middle in (edges[1:] + edges[:-1]) / 2
        ]
        figures = [
            Figure(
                title="Attention by distance in time",
                x_label=f"distance {unit}",
                y_label="attention, 1 = equal for all tokens",
                x=middles,
                series=attention,
            )
        ]
        return [*figures, *_trajectories(folders, models, unit, self.names)]


def _cell(runs: Sequence[RunFolder], measure: str) -> Mean | None:
    found = scored(runs, measure)
    return found and found.model_copy(update={"digits": digits_of(measure)})


def _unit(task: TimedTask[Any, Any]) -> str:
    """What the axes of time count."""
    clock = task.config.clock
    if clock.log:
        return f"on the clock, {clock.scale:g}·log(1 + time/{clock.unit:g} {clock.name})".rstrip()
    return f"on the clock (1 = {clock.unit / clock.scale:g} {clock.name or 'of the raw times'})"


def _trajectories(
    folders: Mapping[str, Any],
    models: Mapping[str, tuple[TimedModel, Any]],
    unit: str,
    names: Mapping[str, str],
) -> list[Figure]:
    """How far an encoding moves from where it starts, against the real clock."""
    lines: list[Series] = []
    times: list[float] = []
    for key, folder in folders.items():
        stored = Encodings.read(folder.path)
        if stored is None or models[key][0].on_indices:
            continue
        thinned = stored.thinned(64)
        table = torch.from_numpy(thinned.tables[0])
        distance = (table - table[:1]).norm(dim=1) / table.norm(dim=1).mean().clamp(min=1e-9)
        lines.append(Series(name=names[key], y=[float(value) for value in distance]))
        times = [round(float(time), 4) for time in thinned.times]
    if not lines:
        return []
    return [
        Figure(
            title="Trajectories against the real clock, first site",
            x_label=f"time {unit}",
            y_label="|p(t) - p(0)| / mean |p|",
            x=list(times),
            series=lines,
        )
    ]


def _on_test(rows: Sequence[VariantScore]) -> list[VariantScore]:
    return [row for row in rows if row.test_set == "test"]


def _differences(rows: Sequence[VariantScore], base: str, names: Mapping[str, str]) -> Table:
    measures = list(dict.fromkeys(row.measure for row in rows))
    cells: dict[str, list[Cell]] = {}
    for row in rows:
        digits = digits_of(row.measure)
        text = f"{row.difference:+.{digits}f} ({row.low:+.{digits}f} to {row.high:+.{digits}f})"
        cells.setdefault(row.variant, []).append(text)
    return Table(
        title=f"Differences from {names[base]}",
        note=f"Paired bootstrap over examples: {rows[0].signature}. Intervals are 95 %.",
        columns=["positions", *measures],
        rows=[[names[variant], *texts] for variant, texts in cells.items()],
    )
