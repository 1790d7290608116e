"""Batches whose order depends on seed and epoch alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from .world import ALONE, World


class EpochLoader(DataLoader[Any]):
    """A DataLoader that tells its batch sampler the epoch.

    It has its own random generator, because the global one belongs to the model.

    Args:
        data: the examples.
        batches: lists of example numbers.
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
        """Set the epoch, which decides the order of the batches."""
        forward = getattr(self.batch_sampler, "set_epoch", None)
        if forward is not None:
            forward(epoch)


class ShuffledBatches(Sampler[list[int]]):
    """Batches of a fixed number of examples, in a new order in every epoch.

    All processes draw the same order; each takes its share of the batches. If the number of batches
    is not a multiple of the world size, the first ones are used twice.

    Args:
        count: number of examples.
        size: examples per batch.
        seed: of the order.
        world: the processes that share the batches.
    """

    def __init__(self, count: int, size: int, seed: int, world: World = ALONE) -> None:
        self._count, self._size, self._seed, self._world = count, size, seed, world
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order."""
        self._epoch = epoch

    def __len__(self) -> int:
        return math.ceil(math.ceil(self._count / self._size) / self._world.size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(self._count)
        batches = [
            order[first : first + self._size].tolist()
            for first in range(0, self._count, self._size)
        ]
        batches += batches[: -len(batches) % self._world.size]
        yield from batches[self._world.rank :: self._world.size]
