"""Batches of a fixed size with examples of similar length, in a new order every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import Sampler

from ...training.world import ALONE, World

_WINDOW = 32  # batches within which examples are sorted by length


class LengthBatches(Sampler[list[int]]):
    """Lists of example numbers: shuffled, then sorted by length within windows of some batches.

    The order depends on seed and epoch only. Every process draws the same list and takes every
    `world.size`-th batch; if the number of batches is not divisible, the first ones are repeated.

    Args:
        lengths: tokens of each example [examples].
        size: examples per batch.
        seed: seed of the order.
        world: the processes that share the batches.
        follow: also called with the epoch, for examples that depend on it.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        size: int,
        seed: int,
        *,
        world: World = ALONE,
        follow: Callable[[int], None] | None = None,
    ) -> None:
        self._lengths, self._size, self._seed = lengths, size, seed
        self._world = world
        self._follow = follow
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that determines the next order."""
        self._epoch = epoch
        if self._follow is not None:
            self._follow(epoch)

    def __len__(self) -> int:
        return math.ceil(len(self._lengths) / self._size / self._world.size)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.all()
        batches += batches[: -len(batches) % self._world.size]
        yield from batches[self._world.rank :: self._world.size]

    def all(self) -> list[list[int]]:
        """The batches of this epoch for all processes."""
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        width = _WINDOW * self._size
        batches = []
        for first in range(0, len(order), width):
            window = order[first : first + width]
            window = window[np.argsort(self._lengths[window], kind="stable")]
            batches += [
                window[start : start + self._size].tolist()
                for start in range(0, len(window), self._size)
            ]
        return [batches[number] for number in random.permutation(len(batches))]

    def padding(self) -> float:
        """Share of this epoch's positions that are padding."""
        padded = sum(len(batch) * int(self._lengths[batch].max()) for batch in self.all())
        return float(1 - self._lengths.sum() / padded)
