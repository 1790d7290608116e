"""The tables and figures of the paper as items that can be reproduced."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..errors import ArgumentError
from ..printing import print_text
from ..runs.results import Results
from ..tasks.translation.config import TranslationConfig
from .parameter_counts import translation_sizes
from .scheduler import Runs, run_all
from .variants import Scale, Sources, Variant


@dataclass(frozen=True)
class ReproductionRequest:
    """The options of a reproduction.

    Attributes:
        scale: smoke, small or paper.
        folder: folder for runs and results.
        seeds: seeds of the runs.
        workers: number of runs at the same time.
        console: where to print progress.
        keys: keys of the variants to run; default: all.
        overrides: settings to change, such as `training.updates=100`.
    """

    scale: Scale
    folder: Path
    seeds: Sequence[int]
    workers: int
    console: Console
    keys: Sequence[str] = ()
    overrides: Sequence[str] = field(default_factory=list)


class Item(ABC):
    """A table or figure of the paper."""

    name: str
    title: str
    trains: str | None = None
    """What it trains on GPUs at the scale paper; None if nothing."""

    @abstractmethod
    def reproduce(self, request: ReproductionRequest) -> Results:
        """Measure what the table or figure of the paper shows."""

    def follow(self, request: ReproductionRequest) -> None:
        """Do the share of a process of rank > 0 under accelerate: take part in the runs."""
        return

    def check(self, request: ReproductionRequest) -> Results | None:
        """Check configs and count parameters without training; None if it trains nothing."""
        return None


class TrainingItem(Item):
    """An item that compares trained models."""

    trains: str | None = "Transformer-base"
    variants: tuple[Variant, ...]
    sources: Sources
    apart = False
    """Whether each run needs its own process, because its memory is measured."""
    scores_only = False
    """Whether scores and predictions of a run are enough, if its weights were deleted."""

    def chosen(self, request: ReproductionRequest) -> list[Variant]:
        """The variants of a request; raises an error if one is unknown or lacks its warm start."""
        if not request.keys:
            return [variant for variant in self.variants if self.offered(variant, request.scale)]
        listed = {variant.key: variant for variant in self.variants}
        variants = [listed.get(key, Variant(key, key)) for key in request.keys]
        for variant in variants:
            if variant.after is not None and variant.after not in request.keys:
                raise ArgumentError(
                    f"`--variants` must include {variant.after} too, because {variant.key} is "
                    "warm-started from it."
                )
            if variant.key not in listed and not (
                self.sources.by_key(request.scale) and self.offered(variant, request.scale)
            ):
                raise ArgumentError(
                    f"`--variants` must be among {', '.join(listed)}, but has {variant.key!r}."
                )
        return variants

    def offered(self, variant: Variant, scale: Scale) -> bool:
        """Whether there is a config of this variant at a scale, valid or not."""
        return self.sources.offers(variant, scale)

    def left_out(self, request: ReproductionRequest) -> str:
        """A line about the variants without a config at this scale; empty if there are none."""
        names = [
            variant.name
            for variant in self.variants
            if not request.keys and not self.offered(variant, request.scale)
        ]
        reason = f"left out because they have no config at the scale {request.scale}"
        return f"{reason}: {'; '.join(names)}" if names else ""

    def configs(
        self, scale: Scale, request: ReproductionRequest | None = None
    ) -> dict[str, TranslationConfig]:
        """The settings of the runs by variant name, without warm starts."""
        variants = (
            [variant for variant in self.variants if self.offered(variant, scale)]
            if request is None
            else self.chosen(request)
        )
        overrides = () if request is None else request.overrides
        return {
            variant.name: TranslationConfig(**self.sources.settings(variant, scale, overrides))
            for variant in variants
        }

    def check(self, request: ReproductionRequest) -> Results:
        table = translation_sizes(
            self.configs(request.scale, request),
            {variant.name: variant.published("parameters") for variant in self.variants},
            f"{self.title}, scale {request.scale}: checked, not trained",
            self.left_out(request),
        )
        return Results(item=self.name, scale=request.scale, title=self.title, tables=[table])

    def follow(self, request: ReproductionRequest) -> None:
        self.runs(request)

    def runs(self, request: ReproductionRequest) -> tuple[list[Variant], Runs]:
        """Run all variants of a request."""
        variants = self.chosen(request)
        if note := self.left_out(request):
            print_text(request.console, note, wrap=True)
        settings = {
            variant.key: self.sources.settings(variant, request.scale, request.overrides)
            for variant in variants
        }
        return variants, run_all(
            variants,
            settings,
            request.seeds,
            request.folder,
            workers=request.workers,
            console=request.console,
            apart=self.apart,
            scores_only=self.scores_only,
        )

    def results(self, request: ReproductionRequest, runs: Runs) -> Results:
        """Results with title and runs, without tables and figures."""
        names = [
            Path(os.path.relpath(run.path, request.folder)).as_posix()
            for runs_of_variant in runs.values()
            for run in runs_of_variant
        ]
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            runs=names,
        )
