"""A model's answers to all inputs of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from .problem import Features, Judged, Part, Problem

_FILLER = -np.inf  # behind the end of a shorter input


@torch.no_grad()
def answers(
    problem: Problem[Any, Any],
    model: nn.Module,
    features: Features,
    tokenizer: PreTrainedTokenizerBase,
    *,
    processes: int = 1,
    process: int = 0,
    only: Sequence[int] | None = None,
    done: Callable[[int], object] = lambda count: None,
) -> dict[str, np.ndarray]:
    """Answers [inputs, …] of a model in eval mode, by name; inputs of about equal length go
    together.

    Args:
        problem: the task.
        model: what to ask.
        features: the inputs.
        tokenizer: the model's.
        processes, process: of how many processes this is which; each takes its share, all get the
            whole.
        only: numbers of the inputs to ask, in order; all unless given.
        done: told how many inputs have been answered since the last call.
    """
    chosen = np.arange(len(features)) if only is None else np.asarray(only)
    collate = problem.collate(tokenizer)
    order = np.argsort(features.lengths()[chosen], kind="stable")
    size = 2 * problem.config.training.batch
    device = next(model.parameters()).device
    found: list[tuple[int, dict[str, Tensor]]] = []
    for first in range(process * size, len(order), processes * size):
        places = order[first : first + size]
        batch = {
            name: tensor.to(device)
            for name, tensor in collate([features[int(chosen[i])] for i in places]).items()
        }
        made = {name: tensor.float().cpu() for name, tensor in problem.answer(model, batch).items()}
        found += [
            (int(place), {name: tensor[row] for name, tensor in made.items()})
            for row, place in enumerate(places)
        ]
        done(len(places))
    if processes > 1:
        found = gather_object(found)
    rows = [row for _, row in sorted(found, key=lambda pair: pair[0])]
    return {name: _stacked([row[name] for row in rows]) for name in rows[0]}


def _stacked(rows: Sequence[Tensor]) -> np.ndarray:
    width = max(tuple(row.shape) for row in rows)
    stacked = np.full((len(rows), *width), _FILLER, dtype=np.float32)
    for number, row in enumerate(rows):
        stacked[number, ...][tuple(slice(size) for size in row.shape)] = row.numpy()
    return stacked


def judged(
    problem: Problem[Any, Any],
    model: nn.Module,
    part: Part,
    tokenizer: PreTrainedTokenizerBase,
    *,
    features: Features | None = None,
    done: Callable[[int], object] = lambda count: None,
) -> Judged:
    """What a model makes of a data set; `features` if it was encoded before."""
    encoded = features if features is not None else problem.encode(part, tokenizer, training=False)
    return problem.judge(part, encoded, answers(problem, model, encoded, tokenizer, done=done))
