"""A DataLoader whose order depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader


class EpochLoader(DataLoader[Any]):
    """A DataLoader that hands the epoch on to its batch sampler.

    Its generator is its own, as the global one belongs to the model.

    Args:
        data: the examples.
        batches: their numbers, batch by batch.
        collate: makes tensors of a batch.
        seed: of the run.
    """

    def __init__(
        self,
        data: Any,
        batches: Iterable[list[int]],
        collate: Callable[[list[Any]], Any],
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(data, batch_sampler=batches, collate_fn=collate, generator=generator)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        follow = getattr(self.batch_sampler, "set_epoch", None)
        if follow is not None:
            follow(epoch)
