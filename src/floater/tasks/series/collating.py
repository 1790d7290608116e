"""Inputs → batches: one token per observation, or one per time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

NOT_ASKED = -100.0
"""Label of tokens that are not asked about."""


class Collate:
    """Inputs → a batch. The first token stands for the whole series, at time 0.

    Args:
        variables: number of variables.
        by_time: whether the observations of one time are one token.
    """

    def __init__(self, variables: int, by_time: bool) -> None:
        self._variables, self._by_time = variables, by_time

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = [self._merged(item) if self._by_time else item for item in items]
        rows, length = len(items), 1 + max(len(item["times"]) for item in tokens)
        times = torch.zeros(rows, length, dtype=torch.float64)
        mask = torch.zeros(rows, length, dtype=torch.long)
        variables = torch.full((rows, length), self._variables)
        shape = (rows, length, self._variables) if self._by_time else (rows, length)
        values, observed = torch.zeros(shape), torch.zeros(shape)
        asked = torch.zeros(rows, length, dtype=torch.bool)
        labels = torch.full((rows, length), NOT_ASKED)
        mask[:, 0] = 1
        for row, item in enumerate(tokens):
            last = 1 + len(item["times"])
            times[row, 1:last] = torch.from_numpy(item["times"])
            variables[row, 1:last] = torch.from_numpy(item["variables"])
            mask[row, 1:last] = 1
            values[row, 1:last] = torch.from_numpy(item["values"])
            if self._by_time:
                observed[row, 1:last] = torch.from_numpy(item["observed"])
            if "asked" in item:
                hidden = torch.from_numpy(item["asked"])
                asked[row, 1:last] = hidden
                true = torch.from_numpy(item["true"] if self._by_time else item["values"])
                labels[row, 1:last][hidden] = true[hidden]
        batch = {"times": times, "values": values, "variables": variables}
        batch["static"] = torch.from_numpy(np.stack([item["static"] for item in items]))
        if self._by_time:
            batch["observed"] = observed
        batch["attention_mask"] = mask
        if "asked" in items[0]:
            values[asked] = 0  # never seen by the model
            batch.update(attention_mask=mask * ~asked, asked=asked, labels=labels)
        elif "label" in items[0]:
            batch["labels"] = torch.tensor([item["label"] for item in items])
            if batch["labels"].is_floating_point():
                batch["labels"] = batch["labels"].float()
        return batch

    def _merged(self, item: dict[str, Any]) -> dict[str, Any]:
        """One token per time; observations that are asked about keep one each."""
        asked = item.get("asked", np.zeros(len(item["times"]), dtype=bool))
        seen = ~asked
        distinct, place = np.unique(item["times"][seen], return_inverse=True)
        count, extra = len(distinct), int(asked.sum())
        values = np.zeros((count + extra, self._variables), dtype=np.float32)
        observed = np.zeros_like(values)
        values[place, item["variables"][seen]] = item["values"][seen]
        observed[place, item["variables"][seen]] = 1
        merged = {
            "times": np.concatenate((distinct, item["times"][asked])),
            "variables": np.concatenate(
                (np.full(count, self._variables), item["variables"][asked])
            ),
            "values": values,
            "observed": observed,
        }
        if "asked" in item:
            merged["asked"] = np.arange(count + extra) >= count
            merged["true"] = np.concatenate((np.zeros(count), item["values"][asked])).astype(
                np.float32
            )
        return merged
