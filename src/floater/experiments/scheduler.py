"""The runs of an experiment: all variants with all seeds.

Interrupted runs are resumed, and finished runs are not repeated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from ..printing import print_text
from ..room import check_folder
from ..runs.folder import RunFolder
from ..tasks import task_from
from ..training.process import main_console
from ..training.resume import check_start
from ..training.task import Task
from .parallel import run_in_parallel
from .variants import Variant

Runs = dict[str, list[RunFolder]]
"""The runs of each variant, by key, one per seed."""


@dataclass(frozen=True)
class Job:
    """A run of a task.

    Attributes:
        label: what progress bars call it.
        task: what to train.
        path: its folder.
        scores_only: whether nothing but its scores and predictions is wanted.
    """

    label: str
    task: Task[Any]
    path: Path
    scores_only: bool = False

    def finished(self) -> bool:
        """Whether this run is finished, with the same settings."""
        folder = RunFolder(self.path)
        if self.scores_only and self.task.is_measured(folder):
            return True
        return self.task.is_finished(folder)

    @property
    def total(self) -> int:
        """The number of updates."""
        return self.task.config.training.updates or 0

    def step(self) -> tuple[int, str]:
        """The last logged update, and its loss as text."""
        rows = list(RunFolder(self.path).metrics())
        step = max((row.get("step", 0) for row in rows), default=0)
        losses = [row["loss"] for row in rows if "loss" in row]
        if step >= self.total:
            return step, "evaluating"
        return step, f"loss {losses[-1]:.2f}" if losses else "reading and encoding"

    def check(self) -> None:
        """Raise an error for what would stop this run and can be found out quickly."""
        self.task.check(self.path)
        folder = RunFolder(self.path)
        if folder.started():
            check_start(self.task.resolve(), folder, resume=True, console=Console(quiet=True))

    def perform(self, console: Console | None = None) -> None:
        """Train or resume the run, and evaluate it."""
        from ..training.run import run  # noqa: PLC0415  (used by workers only)

        printer = console or Console(file=StringIO(), markup=False)
        run(self.task, self.path, resume=self.path.exists(), console=printer)


def job_of(
    variant: Variant,
    settings: Mapping[str, Any],
    seed: int,
    folder: Path,
    *,
    several: bool = False,
    scores_only: bool = False,
) -> Job:
    """The run of a variant with a seed; the label includes the seed if there are `several`."""
    with_seed = {**settings, "seed": seed}
    if variant.after is not None:
        with_seed["init_from"] = folder / f"{variant.after}-seed{seed}"
    label = f"{variant.name}, seed {seed}" if several else variant.name
    path = folder / f"{variant.key}-seed{seed}"
    return Job(label, task_from(with_seed), path, scores_only)


def run_all(
    variants: Sequence[Variant],
    settings: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    folder: Path,
    *,
    workers: int,
    console: Console,
    apart: bool = False,
    scores_only: bool = False,
) -> Runs:
    """Run all variants with all seeds.

    Args:
        variants: the variants; those that are warm-started run after the others.
        settings: settings of each variant, by key.
        seeds: the seeds.
        folder: folder for the run folders, which are called VARIANT-seedN.
        workers: number of runs at the same time, one process per run; 1 uses this process.
        console: where to print progress.
        apart: use one process per run also with one worker.
        scores_only: do not train finished runs again whose weights were deleted.
    """
    check_folder(folder)
    several = len(seeds) > 1
    jobs = {
        (variant.key, seed): job_of(
            variant,
            settings[variant.key],
            seed,
            folder,
            several=several,
            scores_only=scores_only and all(other.after != variant.key for other in variants),
        )
        for variant in variants
        for seed in seeds
    }
    for job in jobs.values():
        if not job.finished():
            job.check()
    waves = [
        [
            jobs[variant.key, seed]
            for seed in seeds
            for variant in variants
            if (variant.after is None) == first
        ]
        for first in (True, False)
    ]
    for wave in waves:
        _run_jobs(wave, workers, apart, console)
    return {
        variant.key: [RunFolder(jobs[variant.key, seed].path) for seed in seeds]
        for variant in variants
    }


def _run_jobs(jobs: Sequence[Job], workers: int, apart: bool, console: Console) -> None:
    unfinished = [job for job in jobs if not job.finished()]
    if len(unfinished) < len(jobs):
        print_finished(console, len(jobs) - len(unfinished), len(jobs))
    distributed = "RANK" in os.environ  # under accelerate, all processes take part in each run
    if workers == 1 and (distributed or not apart):
        for job in unfinished:
            print_text(console, f"training {job.label} …")
            job.perform(main_console(console))
    elif unfinished:
        run_in_parallel(unfinished, workers, console)


def print_finished(console: Console, finished: int, total: int) -> None:
    """Print how many runs are skipped."""
    print_text(console, f"{finished} of {total} runs are already finished")
