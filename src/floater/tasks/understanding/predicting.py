"""The outputs of a model for all inputs of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from ...training.world import ALONE, World
from .problem import Features, Problem

_FILLER = -np.inf  # after the end of a shorter output


@torch.no_grad()
def predict_all(
    problem: Problem[Any, Any],
    model: nn.Module,
    features: Features,
    tokenizer: Any,
    *,
    world: World = ALONE,
    only: Sequence[int] | None = None,
    done: Callable[[int], object] = lambda count: None,
) -> dict[str, np.ndarray]:
    """The outputs [inputs, …] of a model, by name; inputs of similar length share a batch. They are
    computed in the precision of training.

    Args:
        problem: the task.
        model: in eval mode.
        features: the inputs.
        tokenizer: the model's.
        world: the processes; each computes its share, all get everything.
        only: numbers of the inputs to use, in order; all by default.
        done: called with the number of inputs of each finished batch.
    """
    chosen = np.arange(len(features)) if only is None else np.asarray(only)
    collate = problem.collate(tokenizer)
    order = np.argsort(features.lengths()[chosen], kind="stable")
    size = 2 * problem.config.training.batch
    device = next(model.parameters()).device
    numbered: list[tuple[int, dict[str, Tensor]]] = []
    for first in range(world.rank * size, len(order), world.size * size):
        rows = order[first : first + size]
        inputs = collate([features[int(chosen[row])] for row in rows])
        batch = {name: tensor.to(device) for name, tensor in inputs.items()}
        with half_precision(problem.config.training.precision, device):
            predicted = problem.predict(model, batch)
        outputs = {name: tensor.float().cpu() for name, tensor in predicted.items()}
        numbered += [
            (int(row), {name: tensor[i] for name, tensor in outputs.items()})
            for i, row in enumerate(rows)
        ]
        done(len(rows))
    if world.size > 1:
        numbered = gather_object(numbered)
    ordered = [output for _, output in sorted(numbered, key=lambda pair: pair[0])]
    return {name: _stacked([output[name] for output in ordered]) for name in ordered[0]}


def half_precision(precision: str, device: torch.device) -> torch.autocast:
    """Autocast as in training: with the precision of a config, off for float32."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "float32")


def _stacked(rows: Sequence[Tensor]) -> np.ndarray:
    width = max(tuple(row.shape) for row in rows)
    stacked = np.full((len(rows), *width), _FILLER, dtype=np.float32)
    for number, row in enumerate(rows):
        stacked[number, ...][tuple(slice(size) for size in row.shape)] = row.numpy()
    return stacked
