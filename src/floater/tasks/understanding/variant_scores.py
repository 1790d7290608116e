"""Variants of a model against a base: before training, and by paired tests over all seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ...errors import RunError
from ...runs.comparison import StartCheck, VariantScore
from ...runs.folder import RunFolder
from .evaluation import table_of
from .predicting import predict_all
from .problem import Features, Problem
from .resampling import paired_bootstrap

_INPUTS = 256  # number of inputs on which variants are compared before training


@dataclass(frozen=True)
class StartOutputs:
    """The outputs of a variant before training.

    Attributes:
        outputs: by name.
        inputs: number of inputs.
        trained: whether the config names a trained encoder, which a new one replaced.
    """

    outputs: Mapping[str, np.ndarray]
    inputs: int
    trained: bool


def outputs_at_start(
    problem: Problem[Any, Any],
    model: nn.Module,
    valid: Features,
    tokenizer: Any,
    *,
    trained: bool,
) -> StartOutputs:
    """The outputs for some validation inputs.

    Args:
        problem: the task.
        model: as it is before training, in eval mode.
        valid: the validation inputs.
        tokenizer: the model's.
        trained: recorded in the result.
    """
    only = np.unique(np.linspace(0, len(valid) - 1, _INPUTS).astype(int)).tolist()
    outputs = predict_all(problem, model, valid, tokenizer, only=only)
    return StartOutputs(outputs, len(only), trained)


def same_outputs(variants: Sequence[StartOutputs]) -> StartCheck:
    """Whether all variants have the same outputs, bit for bit."""
    first = variants[0]
    identical = all(
        np.array_equal(variant.outputs[name], values)
        for variant in variants
        for name, values in first.outputs.items()
    )
    return StartCheck(
        identical=identical,
        inputs=first.inputs,
        fresh_in_place_of_trained=any(variant.trained for variant in variants),
    )


def compare_variants(
    problem: Problem[Any, Any],
    runs: Mapping[str, Sequence[RunFolder]],
    *,
    draws: int,
    over_seeds: bool = False,
) -> list[VariantScore]:
    """Compare every other variant with the first, on every test set and measure.

    Args:
        problem: the task.
        runs: the runs of each variant, one per seed; the first variant is the base.
        draws: resamples of the paired bootstrap.
        over_seeds: whether the seeds are resampled too.
    """
    base, *others = runs
    first = runs[base][0]
    # The test sets of the run itself, whatever else was measured later.
    names = [name for name in first.facts()["data"] if name != "train"]
    for run in (run for folders in runs.values() for run in folders):
        missing = [name for name in names if name not in run.scores().sets]
        if missing:
            raise RunError(
                f"{run.path} must hold scores for {missing[0]!r}, but does not; run `floater "
                f"evaluate {run.path}`."
            )
    return [
        _score(problem, runs, base, variant, name, measure, draws, over_seeds)
        for variant in others
        for name in names
        for measure in problem.measures
        if measure in first.scores().sets[name].scores
    ]


def _score(
    problem: Problem[Any, Any],
    runs: Mapping[str, Sequence[RunFolder]],
    base: str,
    variant: str,
    name: str,
    measure: str,
    draws: int,
    over_seeds: bool,
) -> VariantScore:
    tables = {key: [table_of(run, name) for run in runs[key]] for key in (base, variant)}
    difference = paired_bootstrap(
        problem.measures[measure],
        tables[base],
        tables[variant],
        draws=draws,
        over_seeds=over_seeds,
    )
    return VariantScore(
        **difference.model_dump(),
        test_set=name,
        against=base,
        measure=measure,
        more_is_better=measure not in problem.less_is_better,
        variant=variant,
        examples=len(tables[base][0]),
        seeds={
            key: [run.scores().sets[name].scores[measure].score for run in runs[key]]
            for key in (base, variant)
        },
    )
