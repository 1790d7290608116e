"""Scores of understanding runs: measuring, keeping predictions, finishing a run, comparing two."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from safetensors.numpy import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from ...attachments import attachment, save_pretrained
from ...errors import ArgumentError, RunError
from ...files import check_hashes, new_folder, reading, record_hashes, write_text
from ...training.extract_encodings import encodings
from ...training.locking import in_use
from ...training.positions import LONGEST
from ...training.records import RunFolder
from ...training.trainer import checkpoints, state_of, step_of, usable
from .config import plain
from .models import ATTACHMENT, load_trained
from .predicting import judged
from .problem import Judged, Part, Problem
from .resampling import interval, paired_bootstrap
from .tables import digits_of

TABLE = "table.safetensors"


def evaluate(
    problem: Problem[Any, Any],
    model: nn.Module,
    part: Part,
    tokenizer: PreTrainedTokenizerBase,
    folder: RunFolder,
    *,
    name: str,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure a model on a data set; predictions, the table behind the scores, and the scores stay
    in the run folder.

    Args:
        problem: the task.
        model: in eval mode.
        part: the data.
        tokenizer: the model's.
        folder: the run's.
        name: under which everything is kept.
        console: where to show a bar.
    """
    check_name(name)
    with in_use(folder.path, "evaluate", alone=False):
        folder.scores()  # damaged ones are refused before any work
        begun = time.perf_counter()
        with Progress(console=console or Console(stderr=True), transient=True) as bar:
            features = problem.encode(part, tokenizer, training=False)
            task = bar.add_task("measuring", total=len(features))
            found = judged(
                problem,
                model,
                part,
                tokenizer,
                features=features,
                done=lambda count: bar.advance(task, count),
            )
        scores: dict[str, Any] = {}
        for measure, value in (problem.scores(found.table) if found.table.size else {}).items():
            half = (
                interval(problem.measures[measure], found.table)
                if measure in problem.measures
                else None
            )
            scores[measure] = {
                "score": value,
                "interval": half,
                "signature": _signature(problem, measure, len(found.table)),
            }
        seconds = round(time.perf_counter() - begun, 1)
        scores |= {
            "examples": len(found.table) or len(part),
            "seconds": seconds,
            "data": part.fingerprint(),
        }
        folder.add_scores(name, scores, lambda: _keep(folder, name, found))
    return scores


def _keep(folder: RunFolder, name: str, found: Judged) -> None:
    """Write predictions, and the table behind their scores if there are any."""
    write_text(
        folder.predictions / f"{name}.json",
        json.dumps(found.predictions, ensure_ascii=False) + "\n",
    )
    place = folder.predictions / f"{name}.table"
    if not found.table.size:
        shutil.rmtree(place, ignore_errors=True)  # of another file that had this name
        return
    with new_folder(place) as aside:
        save_file({"table": np.ascontiguousarray(found.table, dtype=np.float64)}, aside / TABLE)
        record_hashes(aside)


def check_name(name: str) -> None:
    """Refuse a name that is not one file's."""
    if not plain(name):
        raise ArgumentError(f"`name` must be a plain name, without folders, but is {name!r}.")


def _signature(problem: Problem[Any, Any], measure: str, examples: int) -> str:
    version = importlib.metadata.version("floater-transformers")
    return f"{problem.signature(measure)}|n:{examples}|floater:{version}"


def table_of(folder: RunFolder, name: str) -> np.ndarray:
    """The table behind the scores of a run on a data set."""
    path = folder.predictions / f"{name}.table"
    advice = f"run `floater evaluate {folder.path}` (again)."
    if not folder.model.is_dir():
        advice = f"remove {folder.path} and train it again."
    if not (path / TABLE).is_file():
        raise RunError(f"{folder.path} has no scored predictions for {name!r}; {advice}")
    check_hashes(path, RunError, advice)
    with reading(path / TABLE, RunError, advice):
        found: np.ndarray = load_file(path / TABLE)["table"]
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise RunError(
            f"{path / TABLE} must hold finite numbers [examples, columns], but holds "
            f"{list(found.shape)}; {advice}"
        )
    return found


def finish(
    problem: Problem[Any, Any],
    folder: RunFolder,
    parts: Mapping[str, Part],
    tokenizer: PreTrainedTokenizerBase,
    console: Console,
) -> None:
    """Take the last or best weights, measure them on every set, keep what the config asks for."""
    training = problem.config.training
    chosen = usable(folder.checkpoints)[-1]
    if training.take == "best":
        best = state_of(chosen).get("best_global_step")
        chosen = next(
            (one for one in checkpoints(folder.checkpoints) if step_of(one) == best), chosen
        )
    model = load_trained(problem, chosen)
    for name, part in parts.items():
        if name != "train":
            scores = evaluate(problem, model, part, tokenizer, folder, name=name, console=console)
            console.print(
                f"{name}: {describe(scores)}", highlight=False, markup=False, soft_wrap=True
            )
    made = attachment(model)
    if made is not None:
        trained = int(max(folder.facts().get("longest", LONGEST), 1))
        shown = encodings(made, min(2 * trained, LONGEST), trained)
        if shown is not None:
            shown.write(folder.path)
    if training.keep_model:
        with new_folder(folder.model) as place:
            if made is None:
                model.save_pretrained(place)  # type: ignore[operator]
            else:
                save_pretrained(model, place)
            tokenizer.save_pretrained(place)
            record_hashes(place)
    if training.part in ("flow", "start"):
        model.config._name_or_path = problem.config.model.name  # type: ignore[union-attr]
        with new_folder(folder.path / ATTACHMENT) as place:
            save_pretrained(model, place, base=False)
            record_hashes(place)
    folder.note(finished=True, taken=chosen.name)
    if not training.keep_checkpoints:
        shutil.rmtree(folder.checkpoints)


def describe(scores: Mapping[str, Any]) -> str:
    """Scores in words."""
    words = []
    for name, found in scores.items():
        if isinstance(found, dict) and "score" in found:
            digits = digits_of(name)
            more = f" ± {found['interval']:.{digits}f}" if found["interval"] is not None else ""
            words.append(f"{name} {found['score']:.{digits}f}{more}")
    return f"{', '.join(words) or 'no labels, so no score'} ({scores['examples']:,} examples)"


def data_of(folder: RunFolder, name: str) -> str | None:
    """The fingerprint of the data behind scores of a run; None if it has none."""
    data = folder.scored(name).get("data")
    found = data.get("sha256") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def compare_runs(
    problem: Problem[Any, Any], base: RunFolder, other: RunFolder, name: str
) -> dict[str, dict[str, Any]]:
    """Every measure of two runs on one data set: the difference, its interval and the p-value."""
    data = [data_of(folder, name) for folder in (base, other)]
    if data[0] is None or data[0] != data[1]:
        raise RunError(
            f"{base.path} and {other.path} must be measured on the same data under the name "
            f"{name!r}, but are not; evaluate both on one file."
        )
    tables = [table_of(base, name)], [table_of(other, name)]
    return {
        key: asdict(paired_bootstrap(measure, *tables)) for key, measure in problem.measures.items()
    }


def difference(values: Mapping[str, Any], measure: str) -> str:
    """A paired difference in words."""
    digits = digits_of(measure)
    found, low, high = (f"{values[key]:+.{digits}f}" for key in ("difference", "low", "high"))
    return (
        f"{found} {measure} (95 % {low} to {high}, p = {values['p_value']:.3f}; "
        f"{values['signature']})"
    )
