"""Rows of unequal length → tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Rows of equal length, [rows, longest]; the shorter ones filled up."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


class PadRight:
    """Examples → the tensors a model takes, filled up on the right to the longest of the batch.

    Numbers become [examples], rows [examples, longest], several rows an example (options)
    [examples, rows, longest]. `input_ids` are filled with the tokenizer's `pad`, `labels` with
    -100, everything else with 0.
    """

    def __init__(self, pad: int) -> None:
        self._fillers = {"input_ids": pad, "labels": -100}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        found = {}
        for key, first in examples[0].items():
            values = [example[key] for example in examples]
            filler = self._fillers.get(key, 0)
            if isinstance(first, int | float):
                found[key] = torch.tensor(values)
            elif isinstance(first[0], int):
                found[key] = padded(values, filler)
            else:
                found[key] = padded([row for rows in values for row in rows], filler).unflatten(
                    0, (len(values), -1)
                )
        return found
