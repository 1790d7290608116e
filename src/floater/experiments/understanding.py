"""Tables 3 to 5 of the paper: GLUE, RACE and SQuAD with and without FLOATER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from transformers.utils import logging

from ..errors import ArgumentError, RunError
from ..printing import print_text
from ..runs.comparison import Comparison
from ..runs.folder import RunFolder
from ..runs.results import Results
from ..tasks import task_from_file
from ..tasks.compare import compare, run_folders
from ..tasks.understanding.models import attachment_folder
from ..tasks.understanding.task import UnderstandingTask
from ..training.run import run
from .base import Item, ReproductionRequest
from .parallel import run_in_parallel
from .parameter_counts import pretrained_sizes
from .scheduler import print_finished
from .tiny_data import write_tiny_data
from .understanding_tables import by_seed, comparison_table, published, summary
from .variants import Scale, config_file

TINY_DATA, DYNAMICS = "world", "dynamics"
"""Folders of the scale smoke: the generated data and model, and the dynamics trained on them."""


@dataclass(frozen=True)
class Recipe:
    """A config of a benchmark.

    Attributes:
        key: name of its folder, also for `--variants`.
        name: name of the benchmark.
        file: config file in `configs/`; at the scale smoke, in the folder of generated data.
    """

    key: str
    name: str
    file: str


@dataclass(frozen=True)
class ComparisonJob:
    """The runs of a config: all variants with all seeds."""

    label: str
    task: UnderstandingTask[Any, Any]
    path: Path

    @property
    def runs(self) -> list[RunFolder]:
        """Its runs, seed by seed, whether they exist or not."""
        by_variant = run_folders(self.task, self.path).values()
        return [folder for same_seed in zip(*by_variant, strict=True) for folder in same_seed]

    @property
    def total(self) -> int:
        """The number of runs."""
        return len(self.runs)

    def step(self) -> tuple[int, str]:
        """The number of finished runs, and the loss of the current one as text."""
        finished = [run.finished() for run in self.runs]
        if all(finished):
            return len(finished), "evaluating"
        rows = self.runs[finished.index(False)].metrics()
        losses = [(row["loss"], row["step"]) for row in rows if "loss" in row]
        if not losses:
            return sum(finished), "reading and encoding"
        return sum(finished), "loss {:.2f} at update {}".format(*losses[-1])

    def compare(self, console: Console) -> Comparison:
        """Run what is not finished, and compare the variants."""
        return compare(self.task, self.path, resume=True, console=console)

    def perform(self, console: Console | None = None) -> None:
        """The same; prints nothing by default."""
        self.compare(console or Console(file=StringIO(), markup=False))


class Comparisons(Item):
    """A table of the paper about a pretrained model with and without FLOATER."""

    trains = "RoBERTa-base"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]]
    dynamics: ClassVar[Mapping[Scale, str]] = {
        "small": "mlm/granite-256.yaml",
        "paper": "mlm/roberta-base.yaml",
    }
    """Config files that train the dynamics which the benchmarks start from."""
    size: str = "large"
    """Size of the model of the paper whose numbers are shown for comparison."""

    def reproduce(self, request: ReproductionRequest) -> Results:
        jobs = self.jobs(request)
        comparisons = dict(
            zip((job.label for job in jobs), self.compare(request, jobs), strict=True)
        )
        note = (
            f"{'; '.join(map(_data, jobs))}. The numbers of the paper are for RoBERTa-{self.size}, "
            "not comparable."
        )
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            summary=summary(comparisons),
            tables=[
                comparison_table(comparisons, self.title, note, self.size),
                by_seed(comparisons),
                published(list(comparisons)),
            ],
            runs=[
                run.path.relative_to(request.folder).as_posix() for job in jobs for run in job.runs
            ],
        )

    def follow(self, request: ReproductionRequest) -> None:
        self.compare(request, self.jobs(request))

    def check(self, request: ReproductionRequest) -> Results:
        tasks = {job.label: job.task for job in self.jobs(request)}
        table = pretrained_sizes(
            tasks,
            self._task(self._dynamics(request)),
            f"{self.title}, scale {request.scale}: checked, not trained",
        )
        return Results(item=self.name, scale=request.scale, title=self.title, tables=[table])

    def chosen(self, request: ReproductionRequest) -> list[Recipe]:
        """The recipes of a request."""
        recipes = {recipe.key: recipe for recipe in self.recipes[request.scale]}
        for key in request.keys:
            if key not in recipes:
                raise ArgumentError(
                    f"`--variants` must be among {', '.join(recipes)} ({self.name}, scale "
                    f"{request.scale}), but has {key!r}."
                )
        return [recipes[key] for key in request.keys or recipes]

    def jobs(self, request: ReproductionRequest) -> list[ComparisonJob]:
        """The comparisons of a request with checked settings; generates data at the scale smoke."""
        logging.disable_progress_bar()  # would break our own progress bars
        if request.scale == "smoke":
            write_tiny_data(request.folder / TINY_DATA, request.folder / DYNAMICS)
        changes = [*request.overrides, f"compare.seeds={list(request.seeds)}"]
        return [
            ComparisonJob(
                recipe.name,
                self._task(self._file(request, recipe.file), changes),
                request.folder / recipe.key,
            )
            for recipe in self.chosen(request)
        ]

    def compare(
        self, request: ReproductionRequest, jobs: Sequence[ComparisonJob]
    ) -> list[Comparison]:
        """Train the dynamics first, then all variants of each config, and compare them."""
        unfinished = [job for job in jobs if job.step()[0] < job.total]
        if finished := sum(job.step()[0] for job in jobs):
            print_finished(request.console, finished, sum(job.total for job in jobs))
        for job in unfinished:
            job.task.check_data()
        self._pretrain(request, unfinished)
        console = request.console
        if request.workers > 1 and len(unfinished) > 1:
            run_in_parallel(unfinished, request.workers, request.console)
            console = Console(file=StringIO(), markup=False)
        return [job.compare(console) for job in jobs]

    def _pretrain(self, request: ReproductionRequest, jobs: Sequence[ComparisonJob]) -> None:
        """Train the dynamics if they are missing, but not those that `--set` names."""
        named_in_files = {
            self._task(self._file(request, recipe.file)).config.dynamics
            for recipe in self.chosen(request)
        }
        for folder in {job.task.config.dynamics for job in jobs} & named_in_files:
            if folder is None:
                continue
            try:
                attachment_folder(folder)
            except RunError:
                config = self._dynamics(request)
                text = f"{folder} has no trained dynamics: training them first, with {config}"
                print_text(request.console, text, wrap=True)
                run(self._task(config), folder, resume=folder.exists(), console=request.console)

    def _dynamics(self, request: ReproductionRequest) -> Path:
        return self._file(request, self.dynamics.get(request.scale, DYNAMICS + ".yaml"))

    def _file(self, request: ReproductionRequest, name: str) -> Path:
        return request.folder / TINY_DATA / name if request.scale == "smoke" else config_file(name)

    def _task(self, path: Path, changes: Sequence[str] = ()) -> UnderstandingTask[Any, Any]:
        task = task_from_file(path, changes)
        assert isinstance(task, UnderstandingTask)
        return task


def _data(job: ComparisonJob) -> str:
    """The sizes of the splits as text."""
    sizes = {
        name: next(split[key] for key in ("rows", "questions") if key in split)
        for name, split in job.runs[0].facts()["data"].items()
    }
    return f"{job.label}: {', '.join(f'{name} {count:,}' for name, count in sizes.items())}"


def _glue_recipes(folder: str, keys: Sequence[str]) -> list[Recipe]:
    return [Recipe(key, _GLUE_NAMES[key], f"{folder}{key}.yaml") for key in keys]


_GLUE_NAMES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "stsb": "STS-B",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
}


class GlueTable(Comparisons):
    """Table 3: eight tasks with one or two sentences."""

    name = "glue"
    title = "GLUE with and without FLOATER (Table 3)"
    size = "base"
    dynamics: ClassVar[Mapping[Scale, str]] = {**Comparisons.dynamics, "small": "mlm/granite.yaml"}
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": _glue_recipes("", ("cola", "sst2", "stsb", "rte")),
        "small": _glue_recipes("glue/small/", tuple(_GLUE_NAMES)),
        "paper": _glue_recipes("glue/", tuple(_GLUE_NAMES)),
    }


class RaceTable(Comparisons):
    """Table 4: questions with four options."""

    name = "race"
    title = "RACE with and without FLOATER (Table 4)"
    recipes: ClassVar[Mapping[Scale, Sequence[Recipe]]] = {
        "smoke": [Recipe("race", "RACE", "race.yaml")],
        "small": [Recipe("small", "RACE", "race/small.yaml")],
        "paper": [Recipe("roberta-base", "RACE", "race/roberta-base.yaml")],
    }


class SquadTable(Comparisons):
    """Table 5: questions whose answers are spans of a text, or that have no answer."""

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
