"""Batches of a fixed number of examples of about equal length, in a new order every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import Sampler

from ...training.world import ALONE, World

_WINDOW = 32  # batches within which examples are sorted by length


class LengthBatches(Sampler[list[int]]):
    """Lists of example numbers, drawn from seed and epoch: shuffled, then sorted by length in
    stretches of some batches.

    Every process draws the same list and takes each `processes`-th of it; where it does not come
    out even, the first batches are used again.

    Args:
        lengths: tokens of each example [examples].
        size: examples a batch.
        seed: of the order.
        world: the processes that share the batches.
        follow: told the epoch too, where examples depend on it.
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
        """Choose the epoch whose order comes next."""
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
        """The batches of this epoch, of all processes."""
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        stretch = _WINDOW * self._size
        batches = []
        for first in range(0, len(order), stretch):
            some = order[first : first + stretch]
            some = some[np.argsort(self._lengths[some], kind="stable")]
            batches += [
                some[start : start + self._size].tolist()
                for start in range(0, len(some), self._size)
            ]
        return [batches[number] for number in random.permutation(len(batches))]

    def padding(self) -> float:
        """Share of the padded positions of this epoch that hold no token."""
        padded = sum(len(batch) * int(self._lengths[batch].max()) for batch in self.all())
        return float(1 - self._lengths.sum() / padded)
