"""Evaluating understanding runs: measuring, storing predictions, comparing two runs."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from safetensors.numpy import load_file, save_file
from torch import nn

from ...errors import ArgumentError, RunError
from ...files import check_hashes, new_folder, reading, record_hashes, write_text
from ...runs.folder import RunFolder
from ...runs.locks import in_use
from ...runs.scores import Difference, PairedScore, Score, SetScores
from ...training.placement import set_beyond
from ...training.process import expecting_long_inputs, process_settings
from ...training.task import EvaluationRequest
from .comparison_tables import digits_of
from .config import is_plain
from .predicting import predict_all
from .problem import Predictions, Problem, Split
from .resampling import interval, paired_bootstrap

TABLE = "table.safetensors"


def evaluate(
    problem: Problem[Any, Any],
    model: nn.Module,
    split: Split,
    tokenizer: Any,
    folder: RunFolder,
    *,
    name: str,
    console: Console | None = None,
) -> SetScores:
    """Measure a model on a split; predictions, table and scores go to the run folder.

    Args:
        problem: the task.
        model: in eval mode.
        split: the data.
        tokenizer: the model's.
        folder: the run's.
        name: name under which everything is stored.
        console: where to show a progress bar.
    """
    check_name(name)
    with in_use(folder.path, "evaluate", exclusive=False):
        folder.scores()  # refuses damaged scores before any work
        started = time.perf_counter()
        with Progress(console=console or Console(stderr=True), transient=True) as bar:
            features = problem.encode(split, tokenizer, training=False)
            task = bar.add_task("measuring", total=len(features))
            outputs = predict_all(
                problem,
                model,
                features,
                tokenizer,
                done=lambda count: bar.advance(task, count),
            )
        predictions = problem.judge(split, features, outputs)
        table = predictions.table
        scores = SetScores(
            scores=_scores(problem, table, split) if table.size else {},
            examples=len(table) or len(split),
            seconds=round(time.perf_counter() - started, 1),
            data=split.fingerprint(),
        )
        return folder.add_scores(name, scores, lambda: _write(folder, name, predictions))


def _scores(problem: Problem[Any, Any], table: np.ndarray, split: Any) -> dict[str, Score]:
    version = importlib.metadata.version("floater-transformers")
    return {
        measure: Score(
            score=value,
            interval=(
                interval(problem.measures[measure], table) if measure in problem.measures else None
            ),
            signature=f"{problem.signature(measure, split)}|n:{len(table)}|floater:{version}",
            more_is_better=measure not in problem.less_is_better,
        )
        for measure, value in problem.scores(table).items()
    }


def _write(folder: RunFolder, name: str, predictions: Predictions) -> dict[str, str]:
    """Write predictions, and the table behind their scores if there is one."""
    text = json.dumps(predictions.values, ensure_ascii=False)
    write_text(folder.predictions / f"{name}.json", text + "\n")
    path = folder.predictions / f"{name}.table"
    if not predictions.table.size:
        shutil.rmtree(path, ignore_errors=True)  # of another file with the same name
        return {}
    with new_folder(path) as temporary:
        table = np.ascontiguousarray(predictions.table, dtype=np.float64)
        save_file({"table": table}, temporary / TABLE)
        record_hashes(temporary)
    return {}


def check_name(name: str) -> None:
    """Refuse a name that cannot be a file name."""
    if not is_plain(name):
        raise ArgumentError(f"`name` must be a plain name, without folders, but is {name!r}.")


def table_of(folder: RunFolder, name: str) -> np.ndarray:
    """The table behind the scores of a run on a test set."""
    path = folder.predictions / f"{name}.table"
    advice = f"run `floater evaluate {folder.path}` (again)."
    if not folder.model.is_dir():
        advice = f"remove {folder.path} and train it again."
    if not (path / TABLE).is_file():
        raise RunError(f"{folder.path} has no scored predictions for {name!r}; {advice}")
    check_hashes(path, RunError, advice)
    with reading(path / TABLE, RunError, advice):
        table: np.ndarray = load_file(path / TABLE)["table"]
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise RunError(
            f"{path / TABLE} must hold finite numbers [examples, columns], but holds "
            f"{list(table.shape)}; {advice}"
        )
    return table


def describe(scores: SetScores) -> str:
    """Scores as text."""
    texts = []
    for measure, value in scores.scores.items():
        digits = digits_of(measure)
        half = f" ± {value.interval:.{digits}f}" if value.interval is not None else ""
        texts.append(f"{measure} {value.score:.{digits}f}{half}")
    return f"{', '.join(texts) or 'no labels, so no score'} ({scores.examples:,} examples)"


def describe_difference(paired: Difference, measure: str) -> str:
    """A paired difference as text."""
    digits = digits_of(measure)
    return (
        f"{paired.difference:+.{digits}f} {measure} (95 % {paired.low:+.{digits}f} to "
        f"{paired.high:+.{digits}f}, p = {paired.p_value:.3f}; {paired.signature})"
    )


# floater evaluate ---------------------------------------------------------------------------------


def evaluate_run(
    problem: Problem[Any, Any], folder: RunFolder, request: EvaluationRequest, console: Console
) -> None:
    """Measure a run on a file, or on its own test sets; optionally compare with another run.

    Args:
        problem: the run's task.
        folder: the run's.
        request: what to measure.
        console: where to print scores.
    """
    with ExitStack() as stack:
        for path in {folder.path, request.against or folder.path}:
            stack.enter_context(in_use(RunFolder.existing(path).path, "evaluate", exclusive=False))
        stack.enter_context(process_settings())
        other = None if request.against is None else RunFolder.existing(request.against)
        if other is not None:
            _check_same_task(problem, other)
        splits = _requested_splits(problem, request)
        for name, split in splits.items():
            check_name(name)
            _check_own_scores(folder, name, split, request)
            if other is not None:
                _check_own_scores(other, name, split, EvaluationRequest(beyond=request.beyond))
        stack.enter_context(expecting_long_inputs(request.data is None))
        scores = _measure(problem, folder, request, splits, console)
        if other is None:
            return
        for name, split in splits.items():
            if not scores[name].scores:
                raise ArgumentError(
                    f"{split.name} must have labels for a comparison (--against), but has none."
                )
            theirs = other.scores().sets.get(name)
            if theirs is None or theirs.data.get("sha256") != split.fingerprint()["sha256"]:
                their_problem = problem.with_config(type(problem.config)(**other.settings()))
                same = EvaluationRequest(beyond=request.beyond)
                _measure(their_problem, other, same, {name: split}, console)
            _check_same_measures(folder, other, name)
            tests = compare_runs(problem, other, folder, name)
            folder.add_paired(tests)
            for test in tests:
                text = describe_difference(test, test.measure)
                _print(console, f"{name} against {request.against}: {text}")


def _requested_splits(problem: Problem[Any, Any], request: EvaluationRequest) -> dict[str, Split]:
    """The data to evaluate on, by the name under which scores are stored."""
    if request.data is not None:
        name = request.name or request.data.name.removesuffix(".gz").rsplit(".", 1)[0]
        return {name: problem.without_limits().read(request.data)}
    own: dict[str, Split] = {
        name: split for name, split in problem.splits().items() if name != "train"
    }
    return {request.name: own["valid"]} if request.name else own


def _check_same_task(problem: Problem[Any, Any], other: RunFolder) -> None:
    ours, theirs = (_task_name(settings) for settings in (problem.config.dump(), other.settings()))
    if ours != theirs:
        raise ArgumentError(
            f"`--against` must be a run of the same task ({ours}), but {other.path} is one of "
            f"{theirs}."
        )


def _check_same_measures(folder: RunFolder, other: RunFolder, name: str) -> None:
    """Refuse scores that do not measure the same, such as those of inputs of other lengths."""
    ours, theirs = (run.scores().sets[name].scores for run in (folder, other))
    for measure in ours.keys() & theirs.keys():
        signatures = [_without_versions(each[measure].signature) for each in (ours, theirs)]
        if signatures[0] != signatures[1]:
            raise ArgumentError(
                f"`--against` must be a run whose scores on {name!r} mean the same "
                f"({signatures[0]}), but those of {other.path} are {signatures[1]}."
            )


def _without_versions(signature: str) -> str:
    """A signature without the versions of packages, which change as time goes on."""
    parts = signature.split("|")
    return "|".join(part for part in parts if not part.startswith(("floater:", "scikit-learn:")))


def _task_name(settings: dict[str, Any]) -> str:
    """The task of a config, as a message names it."""
    data = settings.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    return " ".join(filter(None, (str(settings.get("task")), name)))


def _check_own_scores(
    folder: RunFolder, name: str, split: Split, request: EvaluationRequest
) -> None:
    """Refuse to replace a run's own scores by something else."""
    own = folder.facts().get("data", {}).get(name)
    if own is None:
        return
    for option, value in (("model", request.model), ("beyond", request.beyond)):
        if value:
            raise ArgumentError(
                f"`--{option}` needs `--name`: {folder.path} stores the scores of its own weights "
                f"as {name!r}."
            )
    fingerprint = split.fingerprint()
    if own.get("sha256") != fingerprint["sha256"]:
        raise ArgumentError(
            f"{fingerprint['from']} cannot be stored as {name!r}, which is another test set of "
            f"{folder.path}; give --name."
        )


def _measure(
    problem: Problem[Any, Any],
    folder: RunFolder,
    request: EvaluationRequest,
    splits: dict[str, Split],
    console: Console,
) -> dict[str, SetScores]:
    model = request.model
    if model is None and not folder.model.is_dir():
        finished = folder.finished()
        advice = "give weights with --model" if finished else "finish the run with --resume"
        reason = ": it was trained with `keep_model: false`, or not trained" if finished else ""
        raise RunError(f"{folder.path} holds no model{reason}; {advice}.")
    path = model or folder.model
    trained, tokenizer = problem.load(path)
    set_beyond(trained, request.beyond)
    scores = {}
    for name, split in splits.items():
        scores[name] = evaluate(problem, trained, split, tokenizer, folder, name=name)
        _print(console, f"{folder.path.name}, {name}: {describe(scores[name])}")
    return scores


def compare_runs(
    problem: Problem[Any, Any], base: RunFolder, other: RunFolder, name: str
) -> list[PairedScore]:
    """Paired tests of two runs on one test set, for every measure."""
    hashes = [
        None if (scores := folder.scores().sets.get(name)) is None else scores.data.get("sha256")
        for folder in (base, other)
    ]
    if hashes[0] is None or hashes[0] != hashes[1]:
        raise RunError(
            f"{base.path} and {other.path} must be measured on the same data under the name "
            f"{name!r}, but are not; evaluate both on one file."
        )
    tables = [table_of(base, name)], [table_of(other, name)]
    return [
        PairedScore(
            **paired_bootstrap(function, *tables).model_dump(),
            test_set=name,
            against=base.path.name,
            measure=measure,
            more_is_better=measure not in problem.less_is_better,
        )
        for measure, function in problem.measures.items()
    ]


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
