"""Losses that are right under gradient accumulation, and that need little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 256
"""Tokens per block; their logits fit into the cache for a vocabulary of a few thousand entries."""


def token_loss(
    *, label_smoothing: float = 0.0, shift: bool = False
) -> Callable[[Any, Tensor, Tensor | int | None], Tensor]:
    """A `compute_loss_func` for the Trainer: the mean over all tokens of a step, whatever the
    number of micro-batches.

    Heads that accept `**kwargs` but return the mean of their micro-batch (Marian, RoBERTa, BERT, …)
    make the stock Trainer add up means without dividing: with 8 micro-batches, loss and gradient
    are 8 times too large. This loss sums and divides by the number of labels in the whole step.

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


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Sum over tokens of the cross-entropy of hidden·weightᵀ; labels of -100 are ignored.

    Equals `F.cross_entropy(hidden @ weight.T, labels, reduction="sum", label_smoothing=…)`, but
    processes the tokens in blocks and computes the gradient in the same pass, so that neither the
    logits nor their gradient are ever stored as a whole.

    Args:
        hidden: [..., dim].
        weight: [vocabulary, dim].
        labels: [...].
        label_smoothing: weight of the uniform distribution.
    """
    real = labels.reshape(-1).ne(-100).nonzero().squeeze(-1)
    chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, real)
    wanted = labels.reshape(-1).index_select(0, real)
    apply: Any = _LinearCrossEntropy.apply
    total: Tensor = apply(chosen, weight, wanted, label_smoothing)
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            wide, matrix = hidden.to(torch.promote_types(hidden.dtype, torch.float32)), weight
            matrix = matrix.to(wide.dtype)
            needed = ctx.needs_input_grad[:2]
            by_hidden = torch.empty_like(wide) if needed[0] else None
            by_weight = torch.zeros_like(matrix) if needed[1] else None
            total = wide.new_zeros(())
            for first in range(0, len(wide), _ROWS):
                rows, wanted = (
                    wide[first : first + _ROWS],
                    labels[first : first + _ROWS].unsqueeze(1),
                )
                logits = rows @ matrix.t()
                norm = logits.logsumexp(1, keepdim=True)
                right = logits.gather(1, wanted)
                total += (
                    norm.sum() - (1 - smoothing) * right.sum() - smoothing * logits.mean(1).sum()
                )
                if not any(needed):
                    continue
                slope = logits.sub_(norm).exp_()
                if smoothing:
                    slope -= smoothing / slope.shape[1]
                slope.scatter_add_(1, wanted, slope.new_full((len(rows), 1), smoothing - 1))
                if by_hidden is not None:
                    torch.mm(slope, matrix, out=by_hidden[first : first + _ROWS])
                if by_weight is not None:
                    by_weight.addmm_(slope.t(), rows)
        ctx.save_for_backward(
            None if by_hidden is None else by_hidden.to(hidden.dtype),
            None if by_weight is None else by_weight.to(weight.dtype),
        )
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        by_hidden, by_weight = ctx.saved_tensors
        return (
            None if by_hidden is None else by_hidden * slope,
            None if by_weight is None else by_weight * slope,
            None,
            None,
        )
