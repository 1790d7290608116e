"""Attention with relative positions, every sum written out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floater.encoders import DistanceVectors


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vectors: DistanceVectors,
    first: int = 0,
    allowed: Tensor | None = None,
) -> Tensor:
    """Equations 3 and 4 of Shaw et al., sum by sum; `allowed` [batch, queries, keys]."""
    reach = len(vectors.keys) // 2
    rows = []
    for batch in range(query.shape[0]):
        for head in range(query.shape[1]):
            for i in range(query.shape[2]):
                distances = [
                    max(-reach, min(reach, j - (i + first))) + reach for j in range(key.shape[2])
                ]
                seen = [
                    j for j in range(key.shape[2]) if allowed is None or bool(allowed[batch, i, j])
                ]
                logits = [
                    (query[batch, head, i] * (key[batch, head, j] + vectors.keys[distances[j]]))
                    .sum()
                    .div(math.sqrt(query.shape[3]))
                    for j in seen
                ]
                total = torch.stack(logits).exp().sum()
                parts = [
                    logit.exp() / total * (value[batch, head, j] + vectors.values[distances[j]])
                    for logit, j in zip(logits, seen, strict=True)
                ]
                rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows).view(query.shape)
