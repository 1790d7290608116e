"""`floater compare`: variants of a model with the same data, settings and seeds, in one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import ConfigError, RunError
from ..files import reading, write_text
from ..printing import print_text
from ..runs.checked_json import read_checked
from ..runs.comparison import COMPARISON, Comparison, StartCheck
from ..runs.folder import RunFolder
from ..runs.locks import in_use
from ..training.process import main_console, process_settings
from ..training.run import run
from ..training.task import Task
from . import task_from_file
from .understanding.comparison_tables import describe_start, markdown
from .understanding.evaluation import describe_difference

START = "start.json"
"""File of a comparison with the checks before training, by seed."""


def compare_configs(
    configs: Sequence[Path], overrides: Sequence[str], out: Path, *, resume: bool, console: Console
) -> str:
    """Compare the variants of each config, in a folder each, and write one table of all.

    Args:
        configs: config files; all are read before anything starts.
        overrides: settings to change, such as `training.updates=100`.
        out: folder for the runs and the table.
        resume: continue with what the folder holds.
        console: where to print progress.

    Returns:
        The table, the content of comparison.md.
    """
    tasks: dict[str, Task[Any]] = {}
    for config in configs:
        task = task_from_file(config, overrides)
        if config.stem in tasks:
            raise ConfigError(
                f"{config}: config files must have different names, but two are called "
                f"{config.stem}."
            )
        try:
            task.variants(task.seeds()[0])
        except ConfigError as error:
            raise ConfigError(f"{config}: {error}") from None
        tasks[config.stem] = task
    if len(tasks) > 1:
        for name, task in tasks.items():
            task.check(out / name)
            task.check_data()
    table = markdown(
        [compare(task, out / name, resume=resume, console=console) for name, task in tasks.items()]
    )
    write_text(out / "comparison.md", table)
    return table


def compare(
    task: Task[Any], path: Path, *, resume: bool = False, console: Console | None = None
) -> Comparison:
    """Train every variant with every seed, then compare; finished runs are not repeated.

    Args:
        task: what to compare.
        path: folder of the comparison and its runs.
        resume: continue with what the folder holds.
        console: where to print progress; stderr by default.

    Returns:
        The content of comparison.json.
    """
    printer = main_console(console)
    task = task.prepare_dependencies(path / "head", printer)
    with (
        in_use(path, "compare", create=True),
        process_settings(task.config.training.threads),
    ):
        return _compare(task, path, resume=resume, console=printer)


def run_folders(task: Task[Any], path: Path) -> dict[str, list[RunFolder]]:
    """The runs of a comparison by variant, one per seed, whether they exist or not."""
    folders: dict[str, list[RunFolder]] = {}
    for seed in task.seeds():
        for variant in task.variants(seed):
            folders.setdefault(variant, []).append(RunFolder(path / f"{variant}-{seed}"))
    return folders


def _compare(task: Task[Any], path: Path, *, resume: bool, console: Console) -> Comparison:
    folders = run_folders(task, path)
    if not resume and any(run.started() for runs in folders.values() for run in runs):
        raise RunError(
            f"{path} holds runs already; continue with --resume, or choose another --out."
        )
    start = {}
    for number, seed in enumerate(task.seeds()):
        variants = task.variants(seed)
        check = (
            _check_start(task, variants, path / START, seed, console) if task.same_start else None
        )
        if check is not None:
            start[str(seed)] = check
        for variant, variant_task in variants.items():
            folder = folders[variant][number].path
            print_text(console, f"{path.name}: {variant}, seed {seed}")
            run(variant_task, folder, resume=resume and folder.exists(), console=console)
    what = f"The record of the runs in {path}"
    with reading(what, RunError, "remove the damaged run, and --resume trains it again."):
        comparison = _summary(task, path, folders, start)
    comparison.write(path / COMPARISON)
    for row in comparison.rows:
        text = describe_difference(row, row.measure)
        print_text(console, f"{row.variant}, {row.test_set}: {text}")
    return comparison


def _summary(
    task: Task[Any],
    path: Path,
    folders: dict[str, list[RunFolder]],
    start: dict[str, StartCheck],
) -> Comparison:
    return Comparison(
        task=task.config.task,
        name=path.name,
        model=task.model_name,
        main=task.main,
        more_is_better=task.more_is_better,
        base=next(iter(folders)),
        seeds=list(task.seeds()),
        start=start,
        training_seconds={
            variant: [run.facts().get("training_seconds") for run in runs]
            for variant, runs in folders.items()
        },
        rows=task.compare(folders),
    )


def _check_start(
    task: Task[Any], variants: dict[str, Task[Any]], path: Path, seed: int, console: Console
) -> StartCheck | None:
    """Check once per seed whether the variants are the same model before training; None if there
    are not two that should be.
    """
    recorded = read_checked(path)
    entry = recorded.get(str(seed))
    if not isinstance(entry, dict) or entry.keys() != StartCheck.model_fields.keys():
        check = task.check_identical_start(list(variants.values()))
        if check is None:
            return None
        entry = check.model_dump()
        write_text(path, json.dumps({**recorded, str(seed): entry}, indent=2) + "\n")
    start = StartCheck(**entry)
    print_text(console, f"seed {seed}: before training, {describe_start(start)}")
    return start
