"""Encoders on one task, on the same body: what `series`, `masked` and their like compare."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..recipes import merge, with_overrides
from ..runs.comparison import VariantScore
from ..runs.folder import RunFolder
from ..runs.results import Cell, Figure, Mean, Results, Table
from ..tasks import task_from
from ..tasks.understanding.comparison_tables import digits_of
from ..tasks.understanding.measured import MeasuredTask
from .base import Item, ReproductionRequest
from .result_tables import fact, scored
from .scheduler import Runs, run_all
from .variants import Scale, Variant

AnyTask = MeasuredTask[Any, Any, Any]


class EncoderComparison(Item):
    """A table of encoders on one task. With `data.folds`, the seeds of a request are the folds."""

    trains = "small Transformers"
    positions: ClassVar[Mapping[str, Mapping[str, Any]]]
    """`positions` of each variant; the first is the base of the paired tests."""
    names: ClassVar[Mapping[str, str]]
    """What tables call each variant."""
    flows: ClassVar[tuple[str, ...]]
    """Variants of which the best is compared with the best other one."""
    flow: ClassVar[str] = "flow"
    """What a summary calls those."""
    test_set: ClassVar[str] = "test"
    """Name of the set on which variants are compared."""

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
            self.task_of(settings[key])
        return settings

    def task_of(self, settings: Mapping[str, Any]) -> AnyTask:
        """The task of a variant's settings."""
        task = task_from(settings)
        assert isinstance(task, MeasuredTask)
        return task

    def check(self, request: ReproductionRequest) -> Results:
        rows: list[list[Cell]] = [
            [self.names[key], self.task_of(settings).config.positions.described()]
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
        task = self.task_of(next(iter(settings.values())))
        base, *_ = settings
        paired = self._paired(task, runs) if len(runs) > 1 else []
        differences = [_differences(paired, base, self.names)] if paired else []
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            summary=self._summary(task, runs),
            tables=[*self.tables(task, runs), *differences],
            figures=self.figures(settings, runs),
            runs=[
                Path(os.path.relpath(run.path, request.folder)).as_posix()
                for each in runs.values()
                for run in each
            ],
        )

    def tables(self, task: AnyTask, runs: Runs) -> list[Table]:
        """The scores of all variants."""
        return [self.score_table(task, runs)]

    def figures(self, settings: Mapping[str, Mapping[str, Any]], runs: Runs) -> list[Figure]:
        """Figures of the trained models."""
        return []

    def _paired(self, task: AnyTask, runs: Runs) -> list[VariantScore]:
        over_seeds = len(next(iter(runs.values()))) > 1
        rows = task.compare(runs, over_seeds=over_seeds)
        return [row for row in rows if row.test_set == self.test_set]

    def score_table(self, task: AnyTask, runs: Runs) -> Table:
        """Every measure of every variant."""
        measures = list(task.measures)
        first = next(iter(runs.values()))
        examples = sum(run.scores().sets[self.test_set].examples or 0 for run in first)
        folds = "folds" if task.config.dump()["data"].get("folds") else "seeds"
        return Table(
            title=self.title,
            note=(
                f"{first[0].scores().sets[self.test_set].data['from']}, {examples:,} examples over "
                f"{len(first)} {folds}; mean ± deviation. {self.anchors}"
            ),
            columns=["positions", *measures, "position parameters", "training, s"],
            rows=[
                [
                    self.names[key],
                    *(self._cell(each, measure) for measure in measures),
                    fact(each, "position_parameters"),
                    fact(each, "training_seconds"),
                ]
                for key, each in runs.items()
            ],
        )

    def _summary(self, task: AnyTask, runs: Runs) -> list[str]:
        main, sign = task.main, 1 if task.more_is_better else -1
        means = {key: scored(each, main, test_set=self.test_set) for key, each in runs.items()}
        values = {key: value.mean for key, value in means.items() if value is not None}
        flows = {key: value for key, value in values.items() if key in self.flows}
        others = {key: value for key, value in values.items() if key not in self.flows}
        if not flows or not others:
            return []
        flow = max(flows, key=lambda key: sign * flows[key])
        other = max(others, key=lambda key: sign * others[key])
        rows = self._paired(task, {other: runs[other], flow: runs[flow]})
        row = next(row for row in rows if row.measure == main)
        digits = digits_of(main)
        return [
            f"Best {self.flow}: {self.names[flow]}, {main} {flows[flow]:.{digits}f}; best "
            f"other: {self.names[other]}, {others[other]:.{digits}f}; difference "
            f"{row.difference:+.{digits}f} (95 % {row.low:+.{digits}f} to "
            f"{row.high:+.{digits}f}, p = {row.p_value:.3f})."
        ]

    def _cell(self, runs: Sequence[RunFolder], measure: str) -> Mean | None:
        found = scored(runs, measure, test_set=self.test_set)
        return found and found.model_copy(update={"digits": digits_of(measure)})


def _differences(rows: Sequence[VariantScore], base: str, names: Mapping[str, str]) -> Table:
    measures = list(dict.fromkeys(row.measure for row in rows))
    cells: dict[str, list[Cell]] = {}
    for row in rows:
        digits = digits_of(row.measure)
        text = f"{row.difference:+.{digits}f} ({row.low:+.{digits}f} to {row.high:+.{digits}f})"
        cells.setdefault(row.variant, []).append(text)
    note = f"Intervals are 95 %: {rows[0].signature}."
    if len(rows[0].seeds[base]) == 1:
        note += " There is one seed: chance in training is not part of them."
    return Table(
        title=f"Differences from {names[base]}",
        note=note,
        columns=["positions", *measures],
        rows=[[names[variant], *texts] for variant, texts in cells.items()],
    )
