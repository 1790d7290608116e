"""How much attention tokens pay to others, by the distance in time between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .model import TimedModel


@torch.no_grad()
def attention_by_distance(
    model: TimedModel, batches: Iterable[dict[str, Tensor]], edges: NDArray[np.float64]
) -> list[float | None]:
    """Mean attention in bins of |t_i - t_j|, over all blocks and heads, as a multiple of what a
    token would get if all that the other one sees got the same; None for an empty bin.

    Args:
        model: in eval mode.
        batches: with `times` and `attention_mask`, among the arguments of its forward.
        edges: of the bins, ascending.
    """
    weighed, pairs = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for batch in batches:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        with _captured(model) as maps:
            model(**inputs)
        seen, times = batch["attention_mask"].bool(), batch["times"]
        both = seen.unsqueeze(1) & seen.unsqueeze(2)
        if model.causal:  # a token can look at those before it only
            both = both.tril()
        attention = torch.stack(maps).mean((0, 2)) * both.sum(2, keepdim=True)
        both &= ~torch.eye(seen.shape[1], dtype=torch.bool)  # a token and itself
        distance = (times.unsqueeze(1) - times.unsqueeze(2)).abs()[both].numpy()
        place = np.digitize(distance, edges) - 1
        inside = (place >= 0) & (place < len(pairs))
        values = attention[both].double().numpy()
        weighed += np.bincount(place[inside], values[inside], len(pairs))
        pairs += np.bincount(place[inside], minlength=len(pairs))
    return [
        float(total / count) if count else None for total, count in zip(weighed, pairs, strict=True)
    ]


@contextmanager
def _captured(model: TimedModel) -> Iterator[list[Tensor]]:
    """Inside, a forward pass leaves the attention [batch, heads, length, length] of each block."""
    maps: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        maps.append(output[1])

    settings = model.body.config
    before = settings._attn_implementation
    settings._attn_implementation = "eager"  # the fused attention does not return its weights
    hooks = [
        module.register_forward_hook(keep)
        for name, module in model.body.named_modules()
        if name.endswith("attention.self")
    ]
    try:
        yield maps
    finally:
        settings._attn_implementation = before
        for hook in hooks:
            hook.remove()
