"""Both arms of a config, for several seeds: the same data, hyperparameters and random numbers; the
difference with its interval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...errors import RunError
from ...files import reading, write_text
from ...training.drive import settle, speaker
from ...training.locking import in_use
from ...training.records import CONFIG, RunFolder, read_facts
from .config import UnderstandingConfig
from .evaluation import difference, table_of
from .models import resolved
from .predicting import answers
from .problem import Problem
from .resampling import paired_bootstrap
from .run import prepare, start, train
from .tables import described

COMPARISON, START = "comparison.json", "start.json"
_SEEN = {
    "identical",
    "inputs",
    "fresh_in_place_of_trained",
}  # what is kept of the look before training
_ASKED = 256  # inputs on which the arms are compared before training


def compare(
    kind: type[Problem[Any, Any]],
    config: UnderstandingConfig,
    path: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train every arm with every seed, then compare; runs that are finished are not made again.

    Args:
        kind: the task.
        config: its settings; `arms` says what is compared.
        path: folder of the comparison; its runs lie in it.
        resume: go on with what the folder holds.
        console: where to tell what happens.

    Returns:
        What comparison.json holds.
    """
    with in_use(path, "compare", create=True):
        return _compare(kind, config, path, resume=resume, console=speaker(console))


def _compare(
    kind: type[Problem[Any, Any]],
    config: UnderstandingConfig,
    path: Path,
    *,
    resume: bool,
    console: Console,
) -> dict[str, Any]:
    runs = {seed: _of_seed(config, seed) for seed in config.compare.seeds}
    if not resume and any(
        (path / _name(arm, seed) / CONFIG).exists() for seed, arms in runs.items() for arm in arms
    ):
        raise RunError(f"{path} holds runs already; go on with --resume, or choose another --out.")
    settle(config.training)
    begun = {}
    for seed, arms in runs.items():
        begun[seed] = _start(kind, arms, path / START, seed, console)
        for arm, settings in arms.items():
            console.print(f"{path.name}: {arm}, seed {seed}", highlight=False, markup=False)
            place = path / _name(arm, seed)
            train(kind, settings, place, resume=resume and place.exists(), console=console)
    with reading(
        f"What the runs in {path} recorded",
        RunError,
        "remove the run whose files are damaged, and --resume makes it anew.",
    ):
        found = summary(kind(config), path, begun)
    write_text(path / COMPARISON, json.dumps(found, indent=2) + "\n")
    for name, sets in found["arms"].items():
        for part, measures in sets.items():
            for measure, paired in measures.items():
                console.print(
                    f"{name}, {part}: {difference(paired, measure)}",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )
    return found


def _name(arm: str, seed: int) -> str:
    return f"{arm}-{seed}"


def _of_seed(config: UnderstandingConfig, seed: int) -> dict[str, UnderstandingConfig]:
    return config.model_copy(update={"seed": seed}).arms()


def summary(
    problem: Problem[Any, Any], path: Path, begun: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Every arm against the first, on every set and measure, from the records of the runs."""
    config = problem.config
    names = list(config.arms())
    folders = {
        name: [RunFolder.existing(path / _name(name, seed)) for seed in config.compare.seeds]
        for name in names
    }
    base, *others = names
    sets = [
        name for name in folders[base][0].facts()["data"] if name != "train"
    ]  # its own, whatever else was measured since
    arms: dict[str, Any] = {}
    for other in others:
        arms[other] = {
            part: {
                measure: {
                    **asdict(
                        paired_bootstrap(
                            function,
                            [table_of(folder, part) for folder in folders[base]],
                            [table_of(folder, part) for folder in folders[other]],
                            draws=config.compare.draws,
                        )
                    ),
                    "examples": len(table_of(folders[base][0], part)),
                    "seeds": {
                        name: [folder.scores()[part][measure]["score"] for folder in folders[name]]
                        for name in (base, other)
                    },
                }
                for measure, function in problem.measures.items()
                if measure in folders[base][0].scores()[part]
            }
            for part in sets
        }
    return {
        "task": config.task,
        "name": path.name,
        "model": config.model.name,
        "main": problem.main,
        "more_is_better": problem.more_is_better,
        "base": base,
        "seeds": list(config.compare.seeds),
        "start": {str(seed): found for seed, found in begun.items()},
        "training_seconds": {
            name: [folder.facts().get("training_seconds") for folder in folders[name]]
            for name in names
        },
        "arms": arms,
    }


def _start(
    kind: type[Problem[Any, Any]],
    arms: dict[str, UnderstandingConfig],
    path: Path,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Whether the arms are one model before training. Looked at once a seed."""
    known = read_facts(path)
    seen = known.get(str(seed))
    if not isinstance(seen, dict) or seen.keys() != _SEEN:
        known[str(seed)] = identical_at_start([kind(resolved(arm)) for arm in arms.values()])
        write_text(path, json.dumps(known, indent=2) + "\n")
    found: dict[str, Any] = known[str(seed)]
    console.print(f"seed {seed}: before training, {described(found)}", highlight=False)
    return found


def identical_at_start(problems: Sequence[Problem[Any, Any]]) -> dict[str, Any]:
    """Whether the arms give the same logits, bit for bit, before any training; encoders are fresh,
    also where `dynamics` are given.

    Args:
        problems: one an arm.
    """
    wanted: dict[str, np.ndarray] | None = None
    identical, asked = True, 0
    trained = any(problem.config.dynamics is not None for problem in problems)
    for problem in problems:
        prepared = prepare(type(problem)(problem.config.model_copy(update={"dynamics": None})))
        only = np.unique(np.linspace(0, len(prepared.valid) - 1, _ASKED).astype(int)).tolist()
        found = answers(
            prepared.problem, start(prepared).eval(), prepared.valid, prepared.tokenizer, only=only
        )
        if wanted is None:
            wanted, asked = found, len(only)
        identical &= all(np.array_equal(found[name], value) for name, value in wanted.items())
    return {"identical": identical, "inputs": asked, "fresh_in_place_of_trained": trained}
