"""A loss that is right when micro-batches are accumulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def token_loss(
    *, label_smoothing: float = 0.0, shift: bool = False
) -> Callable[[Any, Tensor, Tensor | int | None], Tensor]:
    """A `compute_loss_func` for the Trainer: the mean over all tokens of a step, however it is cut
    into micro-batches.

    Heads that accept `**kwargs` but return a mean over their own micro-batch (Marian, RoBERTa, BERT
    …) make the stock Trainer add up means without dividing: with 8 micro-batches loss and gradient
    are 8 times too large. This sums and divides by the number of labels in the whole step.

    Args:
        label_smoothing: weight of the uniform distribution.
        shift: predict the next token (causal language models).
    """

    def loss(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        logits: Tensor = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if shift:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        total = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]).float(),
            labels.reshape(-1),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        count = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        return total / torch.as_tensor(count, device=total.device, dtype=total.dtype)

    return loss
