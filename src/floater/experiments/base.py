"""What an item of the paper is to the machine: a title, arms, and a way from runs to results."""

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
from .arms import Arm, Scale, Sources
from .scheduler import Runs, run_all


@dataclass(frozen=True)
class Order:
    """What a reproduction was asked for.

    Attributes:
        scale: smoke, small or paper.
        folder: where everything goes.
        seeds: of the runs.
        workers: runs at a time.
        console: where to tell what happens.
        keys: arms to run, by key; all unless given.
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
    def reproduce(self, order: Order) -> Results:
        """Measure what the paper shows."""

    def follow(self, order: Order) -> None:
        """Under accelerate, what processes other than the first do: their share of the runs, if
        there are any.
        """
        return

    def check(self, order: Order) -> Results | None:
        """What can be found out without training; None for an item that trains nothing."""
        return None


class Training(Item):
    """An item that compares trained models."""

    trains = "Transformer-base"
    arms: tuple[Arm, ...]
    sources: Sources
    apart = False
    """Whether each run needs a process of its own, as where memory is measured."""

    def chosen(self, order: Order) -> list[Arm]:
        """The arms of an order; the ones they are warm-started from must be among them."""
        if not order.keys:
            return [arm for arm in self.arms if self.offered(arm, order.scale)]
        known = {arm.key: arm for arm in self.arms}
        found = [known.get(key, Arm(key, key)) for key in order.keys]
        for arm in found:
            if arm.after is not None and arm.after not in order.keys:
                raise ArgumentError(
                    f"`--arms` must have {arm.after} too, from which {arm.key} is warm-started."
                )
            if arm.key not in known and not (
                self.sources.by_key(order.scale) and self.offered(arm, order.scale)
            ):
                raise ArgumentError(
                    f"`--arms` must be among {', '.join(known)}, but has {arm.key!r}."
                )
        return found

    def offered(self, arm: Arm, scale: Scale) -> bool:
        """Whether there is a config of this arm at a scale; one that is there and wrong raises when
        it is read.
        """
        return self.sources.offers(arm, scale)

    def left_out(self, order: Order) -> str:
        """Which of its arms have no config at a scale, in words; nothing where all have one, or
        some were chosen.
        """
        names = [
            arm.name for arm in self.arms if not order.keys and not self.offered(arm, order.scale)
        ]
        return (
            f"left out, without a config at the scale {order.scale}: {'; '.join(names)}"
            if names
            else ""
        )

    def configs(self, scale: Scale, order: Order | None = None) -> dict[str, TranslationConfig]:
        """The settings of the runs it needs, by name, warm starts left out."""
        arms = (
            [arm for arm in self.arms if self.offered(arm, scale)]
            if order is None
            else self.chosen(order)
        )
        overrides = () if order is None else order.overrides
        return {
            arm.name: TranslationConfig(**self.sources.settings(arm, scale, overrides))
            for arm in arms
        }

    def check(self, order: Order) -> Results:
        from .checking import check  # noqa: PLC0415  (which knows items)

        return check(self, order)

    def follow(self, order: Order) -> None:
        self.runs(order)

    def runs(self, order: Order) -> tuple[list[Arm], Runs]:
        """Make the runs of an order."""
        arms = self.chosen(order)
        if left := self.left_out(order):
            order.console.print(left, highlight=False, markup=False)
        settings = {
            arm.key: self.sources.settings(arm, order.scale, order.overrides) for arm in arms
        }
        return arms, run_all(
            arms,
            settings,
            order.seeds,
            order.folder,
            workers=order.workers,
            console=order.console,
            apart=self.apart,
        )

    def results(self, order: Order, runs: Runs) -> Results:
        """Results with title and runs filled in, tables and figures still to come."""
        names = [
            Path(os.path.relpath(run.path, order.folder)).as_posix()
            for found in runs.values()
            for run in found
        ]
        return Results(
            item=self.name,
            scale=order.scale,
            title=f"{self.title}, scale {order.scale}",
            runs=names,
        )
