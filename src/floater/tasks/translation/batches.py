"""Batches with a token budget, of sentences of similar length, in a new order every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ...training.world import ALONE, World
from ..padding import padded

Example = tuple[list[int], list[int]]
IGNORED = -100


class Examples(Dataset[Example]):
    """Encoded pairs."""

    def __init__(self, source: Sequence[list[int]], target: Sequence[list[int]]) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Example:
        return self.source[number], self.target[number]

    def lengths(self) -> np.ndarray:
        """Token counts [pairs, 2]."""
        return np.array(
            [(len(one), len(other)) for one, other in zip(self.source, self.target, strict=True)],
            dtype=np.int64,
        )


class TokenBatches(Sampler[list[int]]):
    """Lists of example numbers whose padded size, rows × longest sentence, stays within a budget.

    The shapes of the batches are the same in every epoch; which examples of equal lengths share a
    batch, and the order of the batches, are drawn from the seed and the epoch. Every process draws
    the same list and takes its share. The number of batches is a multiple of `together` (world size
    × accumulated batches); if necessary, the largest batches are halved.

    Args:
        lengths: token counts [examples, 2].
        budget: tokens per batch.
        seed: of the order.
        world: the processes that share the batches.
        together: number of batches that make one update.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        budget: int,
        seed: int,
        *,
        world: World = ALONE,
        together: int = 1,
    ) -> None:
        self._lengths, self._seed, self._world = lengths, seed, world
        self._epoch = 0
        self._order = _by_length(lengths)
        self._cuts = _halve(_cut(lengths[self._order].max(1), budget), together)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order."""
        self._epoch = epoch

    def __len__(self) -> int:
        return (len(self._cuts) - 1) // self._world.size

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.all()[: len(self) * self._world.size][self._world.rank :: self._world.size]

    def all(self) -> list[list[int]]:
        """The batches of this epoch for all processes."""
        random = np.random.default_rng([self._seed, self._epoch])
        shuffled = random.permutation(len(self._lengths))
        order = shuffled[_by_length(self._lengths[shuffled])]
        batches = [
            order[first:last].tolist()
            for first, last in zip(self._cuts[:-1], self._cuts[1:], strict=True)
        ]
        return [batches[number] for number in random.permutation(len(batches))]

    def padding(self) -> float:
        """Fraction of positions, on both sides, that are padding."""
        lengths = self._lengths[self._order]
        padded = sum(
            (last - first) * lengths[first:last].max(0).sum()
            for first, last in zip(self._cuts[:-1], self._cuts[1:], strict=True)
        )
        return float(1 - lengths.sum() / padded)


def _by_length(lengths: np.ndarray) -> np.ndarray:
    """Examples by target length; sources rise within one target length and fall within the next, so
    that neighbours fit.
    """
    source, target = lengths[:, 0], lengths[:, 1]
    return np.lexsort((np.where(target % 2 == 0, source, -source), target))


def _cut(longest: np.ndarray, budget: int) -> list[int]:
    cuts, first, widest = [0], 0, 0
    for number, length in enumerate(longest.tolist()):
        widest = max(widest, length)
        if number > first and (number + 1 - first) * widest > budget:
            cuts.append(number)
            first, widest = number, length
    return [*cuts, len(longest)]


def _halve(cuts: list[int], together: int) -> list[int]:
    while (len(cuts) - 1) % together:
        sizes = np.diff(cuts)
        largest = int(sizes.argmax())
        if sizes[largest] < 2:  # fewer examples than processes
            break
        cuts = sorted([*cuts, cuts[largest] + int(sizes[largest]) // 2])
    return cuts


class Collate:
    """Rows of token numbers → the tensors a Marian model takes.

    `decoder_input_ids` are the labels, shifted right by one.
    """

    def __init__(self, pad: int, start: int) -> None:
        self.pad, self.start = pad, start

    def __call__(self, rows: Sequence[Example]) -> dict[str, Tensor]:
        source = padded([one for one, _ in rows], self.pad)
        return {
            "input_ids": source,
            "attention_mask": source.ne(self.pad).to(torch.int64),
            "decoder_input_ids": padded([[self.start, *other[:-1]] for _, other in rows], self.pad),
            "labels": padded([other for _, other in rows], IGNORED),
        }
