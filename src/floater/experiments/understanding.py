"""Tables 3, 4 and 5 of the paper: GLUE, RACE and SQuAD, a pretrained model with and without
FLOATER.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from transformers.utils import logging

from ..errors import ArgumentError, RunError
from ..runs.results import Results
from ..tasks import task_of
from ..tasks.understanding.commands import Understanding
from ..tasks.understanding.models import attachment_folder
from ..runs.folder import RunFolder
from .arms import Scale, configs
from .base import Item, Order
from .bases import sizes
from .scheduler import side_by_side
from .tiny_data import write_world
from .understanding_tables import by_seed, compared, published, summary

WORLD, LAW = "world", "law"
"""Folders of the scale smoke: what was made, and the law of motion that was trained on it."""


@dataclass(frozen=True)
class Recipe:
    """A config and what it is about.

    Attributes:
        key: name of its folder, which `--arms` takes.
        name: of the benchmark.
        file: the config below `configs/`; at the scale smoke, its name in the made world.
    """

    key: str
    name: str
    file: str


@dataclass(frozen=True)
class Comparison:
    """Both arms of a config with all seeds."""

    label: str
    task: Understanding
    path: Path

    @property
    def runs(self) -> list[RunFolder]:
        """Its runs, whether they are made or not."""
        config = self.task.config
        return [
            RunFolder(self.path / f"{arm}-{seed}")
            for seed in config.compare.seeds
            for arm in config.arms()
        ]

    @property
    def total(self) -> int:
        """How many runs it has."""
        return len(self.runs)

    def step(self) -> tuple[int, str]:
        """How many runs are finished, and how far the one is that is being made."""
        finished = [bool(run.facts().get("finished")) for run in self.runs]
        words = "measuring" if all(finished) else "reading and encoding"
        for row in [] if all(finished) else self.runs[finished.index(False)].metrics():
            words = f"loss {row['loss']:.2f} at update {row['step']}" if "loss" in row else words
        return sum(finished), words

    def compare(self, console: Console) -> dict[str, Any]:
        """Make what is not yet made, and compare."""
        return self.task.compare(self.path, resume=True, console=console)

    def perform(self, console: Console | None = None) -> None:
        """The same, in silence."""
        self.compare(console or Console(file=StringIO(), markup=False))


class Comparisons(Item):
    """A table of the paper about pretrained models."""

    trains = "RoBERTa-base"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]]
    laws: ClassVar[Mapping[Scale, str]] = {
        "small": "mlm/granite-256.yaml",
        "paper": "mlm/roberta-base.yaml",
    }
    """Configs that train the law of motion which the others start from."""
    size: str = "large"
    """Of the paper's models, the one whose numbers stand beside ours."""

    def reproduce(self, order: Order) -> Results:
        jobs = self.jobs(order)
        found = dict(zip((job.label for job in jobs), self.compare(order, jobs), strict=True))
        about = (
            f"{'; '.join(map(_data, jobs))}. The paper's numbers are of RoBERTa-{self.size}, not "
            "comparable."
        )
        return Results(
            item=self.name,
            scale=order.scale,
            title=f"{self.title}, scale {order.scale}",
            summary=summary(found),
            tables=[
                compared(found, self.title, about, self.size),
                by_seed(found),
                published(list(found)),
            ],
            runs=[
                run.path.relative_to(order.folder).as_posix() for job in jobs for run in job.runs
            ],
        )

    def follow(self, order: Order) -> None:
        self.compare(order, self.jobs(order))

    def check(self, order: Order) -> Results:
        tasks = {job.label: job.task for job in self.jobs(order)}
        table = sizes(
            tasks,
            self._task(self._law(order)),
            f"{self.title}, scale {order.scale}: checked, not trained",
        )
        return Results(item=self.name, scale=order.scale, title=self.title, tables=[table])

    def chosen(self, order: Order) -> list[Recipe]:
        """The recipes of an order."""
        known = {recipe.key: recipe for recipe in self.recipes[order.scale]}
        for key in order.keys:
            if key not in known:
                raise ArgumentError(
                    f"`--arms` must be among {', '.join(known)} ({self.name}, scale {order.scale}),"
                    f" but has {key!r}."
                )
        return [known[key] for key in order.keys or known]

    def jobs(self, order: Order) -> list[Comparison]:
        """The comparisons of an order, their settings checked.

        At the scale smoke, their world is made first.
        """
        logging.disable_progress_bar()  # bars of loading and saving would break ours
        if order.scale == "smoke":
            write_world(order.folder / WORLD, order.folder / LAW)
        changes = [*order.overrides, f"compare.seeds={list(order.seeds)}"]
        return [
            Comparison(
                recipe.name,
                self._task(self._file(order, recipe.file), changes),
                order.folder / recipe.key,
            )
            for recipe in self.chosen(order)
        ]

    def compare(self, order: Order, jobs: Sequence[Comparison]) -> list[dict[str, Any]]:
        """Train what is not yet trained: the law of motion first, then both arms of each config,
        several configs at a time.
        """
        todo = [job for job in jobs if job.step()[0] < job.total]
        if kept := sum(job.step()[0] for job in jobs):
            order.console.print(
                f"{kept} of {sum(job.total for job in jobs)} runs were finished earlier and are "
                "kept",
                highlight=False,
                markup=False,
            )
        for job in todo:
            job.task.check()
        self._pretrain(order, todo)
        console = order.console
        if order.workers > 1 and len(todo) > 1:
            side_by_side(todo, order.workers, order.console)
            console = Console(file=StringIO(), markup=False)
        return [job.compare(console) for job in jobs]

    def _pretrain(self, order: Order, jobs: Sequence[Comparison]) -> None:
        """Train the law of motion that the configs themselves name, where it is missing; one of
        `--set` must be there.
        """
        own = {
            self._task(self._file(order, recipe.file)).config.dynamics
            for recipe in self.chosen(order)
        }
        for place in {job.task.config.dynamics for job in jobs} & own:
            if place is None:
                continue
            try:
                attachment_folder(place)
            except RunError:
                law = self._law(order)
                order.console.print(
                    f"{place} holds no trained law of motion: it is trained first, by {law}",
                    highlight=False,
                    markup=False,
                )
                self._task(law).train(place, resume=place.exists(), console=order.console)

    def _law(self, order: Order) -> Path:
        return self._file(order, self.laws.get(order.scale, LAW + ".yaml"))

    def _file(self, order: Order, name: str) -> Path:
        return order.folder / WORLD / name if order.scale == "smoke" else configs(name)

    def _task(self, path: Path, changes: Sequence[str] = ()) -> Understanding:
        found = task_of(path, changes)
        assert isinstance(found, Understanding)
        return found


def _data(job: Comparison) -> str:
    facts = job.runs[0].facts()
    parts = {
        name: next(part[key] for key in ("rows", "questions") if key in part)
        for name, part in facts["data"].items()
    }
    return f"{job.label}: {', '.join(f'{name} {count:,}' for name, count in parts.items())}"


def _glue(folder: str, keys: Mapping[str, str]) -> list[Recipe]:
    return [Recipe(key, name, f"{folder}{key}.yaml") for key, name in keys.items()]


_GLUE = {
    **{"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "qqp": "QQP"},
    **{"stsb": "STS-B", "mnli": "MNLI", "qnli": "QNLI", "rte": "RTE"},
}


class Glue(Comparisons):
    """Eight tasks of one or two sentences."""

    name = "glue"
    title = "GLUE with and without FLOATER (Table 3)"
    size = "base"
    laws: ClassVar[Mapping[Scale, str]] = {**Comparisons.laws, "small": "mlm/granite.yaml"}
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": _glue("", {key: _GLUE[key] for key in ("cola", "sst2", "stsb", "rte")}),
        "small": _glue("glue/small/", _GLUE),
        "paper": _glue("glue/", _GLUE),
    }


class Race(Comparisons):
    """Four options a question."""

    name = "race"
    title = "RACE with and without FLOATER (Table 4)"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": [Recipe("race", "RACE", "race.yaml")],
        "small": [Recipe("small", "RACE", "race/small.yaml")],
        "paper": [Recipe("roberta-base", "RACE", "race/roberta-base.yaml")],
    }


class Squad(Comparisons):
    """Answers as spans, and questions without one."""

    name = "squad"
    title = "SQuAD with and without FLOATER (Table 5)"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": [
            Recipe("squad", "SQuAD 1.1", "squad.yaml"),
            Recipe("squad-v2", "SQuAD 2.0", "squad-v2.yaml"),
        ],
        "small": [
            Recipe("small", "SQuAD 1.1", "squad/small.yaml"),
            Recipe("small-v2", "SQuAD 2.0", "squad/small-v2.yaml"),
        ],
        "paper": [Recipe("roberta-base", "SQuAD 1.1", "squad/roberta-base.yaml")],
    }
