"""Padding rows of unequal length to tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Pad rows on the right with `filler`, to [rows, longest]."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


class PadRight:
    """A collate function that pads examples on the right to the longest of the batch.

    Numbers become [examples], rows [examples, longest], and several rows per example (the options
    of a question) [examples, rows, longest]. `input_ids` are padded with the tokenizer's `pad`,
    `labels` with -100, everything else with 0.
    """

    def __init__(self, pad: int) -> None:
        self._fillers = {"input_ids": pad, "labels": -100}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = {}
        for key, first in examples[0].items():
            values = [example[key] for example in examples]
            filler = self._fillers.get(key, 0)
            if isinstance(first, int | float):
                batch[key] = torch.tensor(values)
            elif isinstance(first[0], int):
                batch[key] = padded(values, filler)
            else:
                flat = padded([row for rows in values for row in rows], filler)
                batch[key] = flat.unflatten(0, (len(values), -1))
        return batch
