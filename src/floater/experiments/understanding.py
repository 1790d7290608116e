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
from ..runs.comparison import Comparison
from ..runs.folder import RunFolder
from ..runs.results import Results
from ..tasks import task_from_file
from ..tasks.compare import compare, run_folders
from ..tasks.understanding.models import attachment_folder
from ..tasks.understanding.task import UnderstandingTask
from ..training.run import run
from .base import Item, Request
from .parameter_counts import pretrained_sizes
from .scheduler import side_by_side
from .tiny_data import write_world
from .understanding_tables import by_seed, comparison_table, published, summary
from .variants import Scale, configs

WORLD, DYNAMICS = "world", "law"
"""Folders of the scale smoke: what was made, and the dynamics that was trained on it."""


@dataclass(frozen=True)
class Recipe:
    """A config and what it is about.

    Attributes:
        key: name of its folder, which `--variants` takes.
        name: of the benchmark.
        file: the config below `configs/`; at the scale smoke, its name in the made world.
    """

    key: str
    name: str
    file: str


@dataclass(frozen=True)
class ComparisonJob:
    """Both variants of a config with all seeds."""

    label: str
    task: UnderstandingTask[Any, Any]
    path: Path

    @property
    def runs(self) -> list[RunFolder]:
        """Its runs, whether they are made or not."""
        folders = run_folders(self.task, self.path)
        return [
            folder
            for folders_of_seed in zip(*folders.values(), strict=True)
            for folder in folders_of_seed
        ]

    @property
    def total(self) -> int:
        """How many runs it has."""
        return len(self.runs)

    def step(self) -> tuple[int, str]:
        """How many runs are finished, and how far the one is that is being made."""
        finished = [run.finished() for run in self.runs]
        words = "measuring" if all(finished) else "reading and encoding"
        for row in [] if all(finished) else self.runs[finished.index(False)].metrics():
            words = f"loss {row['loss']:.2f} at update {row['step']}" if "loss" in row else words
        return sum(finished), words

    def compare(self, console: Console) -> Comparison:
        """Make what is not yet made, and compare."""
        return compare(self.task, self.path, resume=True, console=console)

    def perform(self, console: Console | None = None) -> None:
        """The same, in silence."""
        self.compare(console or Console(file=StringIO(), markup=False))


class Comparisons(Item):
    """A table of the paper about pretrained models."""

    trains = "RoBERTa-base"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]]
    dynamics: ClassVar[Mapping[Scale, str]] = {
        "small": "mlm/granite-256.yaml",
        "paper": "mlm/roberta-base.yaml",
    }
    """Configs that train the dynamics which the others start from."""
    size: str = "large"
    """Of the paper's models, the one whose numbers stand beside ours."""

    def reproduce(self, request: Request) -> Results:
        jobs = self.jobs(request)
        comparisons = dict(
            zip((job.label for job in jobs), self.compare(request, jobs), strict=True)
        )
        about = (
            f"{'; '.join(map(_data, jobs))}. The paper's numbers are of RoBERTa-{self.size}, not "
            "comparable."
        )
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            summary=summary(comparisons),
            tables=[
                comparison_table(comparisons, self.title, about, self.size),
                by_seed(comparisons),
                published(list(comparisons)),
            ],
            runs=[
                run.path.relative_to(request.folder).as_posix() for job in jobs for run in job.runs
            ],
        )

    def follow(self, request: Request) -> None:
        self.compare(request, self.jobs(request))

    def check(self, request: Request) -> Results:
        tasks = {job.label: job.task for job in self.jobs(request)}
        table = pretrained_sizes(
            tasks,
            self._task(self._dynamics(request)),
            f"{self.title}, scale {request.scale}: checked, not trained",
        )
        return Results(item=self.name, scale=request.scale, title=self.title, tables=[table])

    def chosen(self, request: Request) -> list[Recipe]:
        """The recipes of an request."""
        known = {recipe.key: recipe for recipe in self.recipes[request.scale]}
        for key in request.keys:
            if key not in known:
                raise ArgumentError(
                    f"`--variants` must be among {', '.join(known)} ({self.name}, scale"
                    f" {request.scale}), but has {key!r}."
                )
        return [known[key] for key in request.keys or known]

    def jobs(self, request: Request) -> list[ComparisonJob]:
        """The comparisons of an request, their settings checked.

        At the scale smoke, their world is made first.
        """
        logging.disable_progress_bar()  # bars of loading and saving would break ours
        if request.scale == "smoke":
            write_world(request.folder / WORLD, request.folder / DYNAMICS)
        changes = [*request.overrides, f"compare.seeds={list(request.seeds)}"]
        return [
            ComparisonJob(
                recipe.name,
                self._task(self._file(request, recipe.file), changes),
                request.folder / recipe.key,
            )
            for recipe in self.chosen(request)
        ]

    def compare(self, request: Request, jobs: Sequence[ComparisonJob]) -> list[Comparison]:
        """Train what is not yet trained: the dynamics first, then both variants of each config,
        several configs at a time.
        """
        todo = [job for job in jobs if job.step()[0] < job.total]
        if kept := sum(job.step()[0] for job in jobs):
            request.console.print(
                f"{kept} of {sum(job.total for job in jobs)} runs were finished earlier and are "
                "kept",
                highlight=False,
                markup=False,
            )
        for job in todo:
            job.task.check_data()
        self._pretrain(request, todo)
        console = request.console
        if request.workers > 1 and len(todo) > 1:
            side_by_side(todo, request.workers, request.console)
            console = Console(file=StringIO(), markup=False)
        return [job.compare(console) for job in jobs]

    def _pretrain(self, request: Request, jobs: Sequence[ComparisonJob]) -> None:
        """Train the dynamics that the configs themselves name, where it is missing; one of
        `--set` must be there.
        """
        own = {
            self._task(self._file(request, recipe.file)).config.dynamics
            for recipe in self.chosen(request)
        }
        for place in {job.task.config.dynamics for job in jobs} & own:
            if place is None:
                continue
            try:
                attachment_folder(place)
            except RunError:
                config = self._dynamics(request)
                request.console.print(
                    f"{place} holds no trained dynamics: they are trained first, by {config}",
                    highlight=False,
                    markup=False,
                )
                run(self._task(config), place, resume=place.exists(), console=request.console)

    def _dynamics(self, request: Request) -> Path:
        return self._file(request, self.dynamics.get(request.scale, DYNAMICS + ".yaml"))

    def _file(self, request: Request, name: str) -> Path:
        return request.folder / WORLD / name if request.scale == "smoke" else configs(name)

    def _task(self, path: Path, changes: Sequence[str] = ()) -> UnderstandingTask[Any, Any]:
        task = task_from_file(path, changes)
        assert isinstance(task, UnderstandingTask)
        return task


def _data(job: ComparisonJob) -> str:
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


class GlueTable(Comparisons):
    """Eight tasks of one or two sentences."""

    name = "glue"
    title = "GLUE with and without FLOATER (Table 3)"
    size = "base"
    dynamics: ClassVar[Mapping[Scale, str]] = {**Comparisons.dynamics, "small": "mlm/granite.yaml"}
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": _glue("", {key: _GLUE[key] for key in ("cola", "sst2", "stsb", "rte")}),
        "small": _glue("glue/small/", _GLUE),
        "paper": _glue("glue/", _GLUE),
    }


class RaceTable(Comparisons):
    """Four options a question."""

    name = "race"
    title = "RACE with and without FLOATER (Table 4)"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": [Recipe("race", "RACE", "race.yaml")],
        "small": [Recipe("small", "RACE", "race/small.yaml")],
        "paper": [Recipe("roberta-base", "RACE", "race/roberta-base.yaml")],
    }


class SquadTable(Comparisons):
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
