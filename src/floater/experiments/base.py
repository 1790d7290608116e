"""What is reproduced: a table or figure of the paper, its variants, and its results."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..errors import ArgumentError
from ..runs.results import Results
from ..tasks.translation.config import TranslationConfig
from .parameter_counts import translation_sizes
from .scheduler import Runs, run_all
from .variants import Scale, Sources, Variant, paper


@dataclass(frozen=True)
class Request:
    """What a reproduction was asked for.

    Attributes:
        scale: smoke, small or paper.
        folder: where everything goes.
        seeds: of the runs.
        workers: runs at a time.
        console: where to tell what happens.
        keys: variants to run, by key; all unless given.
        overrides: settings to change, as `training.updates=100`.
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
    """What it trains at the scale paper, for days; None for an item that trains nothing."""

    @abstractmethod
    def reproduce(self, request: Request) -> Results:
        """Measure what the paper shows."""

    def follow(self, request: Request) -> None:
        """Under accelerate, what processes other than the first do: their share of the runs, if
        there are any.
        """
        return

    def check(self, request: Request) -> Results | None:
        """What can be found out without training; None for an item that trains nothing."""
        return None


class TrainingItem(Item):
    """An item that compares trained models."""

    trains = "Transformer-base"
    variants: tuple[Variant, ...]
    sources: Sources
    apart = False
    """Whether each run needs a process of its own, as where memory is measured."""

    def chosen(self, request: Request) -> list[Variant]:
        """The variants of an request; the ones they are warm-started from must be among them."""
        if not request.keys:
            return [variant for variant in self.variants if self.offered(variant, request.scale)]
        known = {variant.key: variant for variant in self.variants}
        found = [known.get(key, Variant(key, key)) for key in request.keys]
        for variant in found:
            if variant.after is not None and variant.after not in request.keys:
                raise ArgumentError(
                    f"`--variants` must have {variant.after} too, from which {variant.key} is"
                    " warm-started."
                )
            if variant.key not in known and not (
                self.sources.by_key(request.scale) and self.offered(variant, request.scale)
            ):
                raise ArgumentError(
                    f"`--variants` must be among {', '.join(known)}, but has {variant.key!r}."
                )
        return found

    def offered(self, variant: Variant, scale: Scale) -> bool:
        """Whether there is a config of this variant at a scale; one that is there and wrong raises
        when it is read.
        """
        return self.sources.offers(variant, scale)

    def left_out(self, request: Request) -> str:
        """Which of its variants have no config at a scale, in words; nothing where all have one, or
        some were chosen.
        """
        names = [
            variant.name
            for variant in self.variants
            if not request.keys and not self.offered(variant, request.scale)
        ]
        return (
            f"left out, without a config at the scale {request.scale}: {'; '.join(names)}"
            if names
            else ""
        )

    def configs(self, scale: Scale, request: Request | None = None) -> dict[str, TranslationConfig]:
        """The settings of the runs it needs, by name, warm starts left out."""
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

    def check(self, request: Request) -> Results:
        table = translation_sizes(
            self.configs(request.scale, request),
            {variant.name: paper(variant, "parameters") for variant in self.variants},
            f"{self.title}, scale {request.scale}: checked, not trained",
            self.left_out(request),
        )
        return Results(item=self.name, scale=request.scale, title=self.title, tables=[table])

    def follow(self, request: Request) -> None:
        self.runs(request)

    def runs(self, request: Request) -> tuple[list[Variant], Runs]:
        """Make the runs of an request."""
        variants = self.chosen(request)
        if left := self.left_out(request):
            request.console.print(left, highlight=False, markup=False)
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
        )

    def results(self, request: Request, runs: Runs) -> Results:
        """Results with title and runs filled in, tables and figures still to come."""
        names = [
            Path(os.path.relpath(run.path, request.folder)).as_posix()
            for found in runs.values()
            for run in found
        ]
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            runs=names,
        )
