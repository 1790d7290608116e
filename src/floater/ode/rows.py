"""Storage that grows in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_BLOCK_BYTES = 8 * 2**20
_STEPS_PER_BLOCK = 64  # at most


class Rows:
    """Rows of equal width that grow in blocks: a block is one matrix, and no block is ever copied.

    Each step adds `stride` rows. Consecutive steps may share one row, which is repeated at the head
    of each block.

    Args:
        like: a tensor of the rows' type and device.
        width: elements per row.
        stride: rows that a step adds.
        shared: rows that consecutive steps share, 0 or 1.
        keep: whether to store all steps, or only the current one.
    """

    def __init__(self, like: Tensor, width: int, stride: int, shared: int, keep: bool) -> None:
        self._like, self._width, self._keep = like, width, keep
        self._stride, self._shared = stride, shared
        fitting = _BLOCK_BYTES // max(1, stride * width * like.element_size())
        self.steps_per_block = max(1, min(_STEPS_PER_BLOCK, fitting)) if keep else 1
        self._blocks: list[Tensor] = []

    def window(self, step: int) -> Tensor:
        """Return the rows of one step, to be written or read."""
        block, index = divmod(step, self.steps_per_block) if self._keep else (0, 0)
        if block == len(self._blocks):
            rows = self._shared + self._stride * self.steps_per_block
            self._blocks.append(self._like.new_empty(rows, self._width))
            if block and self._shared:
                self._blocks[block][: self._shared] = self._blocks[block - 1][-self._shared :]
        first = index * self._stride
        return self._blocks[block][first : first + self._stride + self._shared]

    def recycle(self) -> None:
        """Make the last row of a step the first of the next, where only one step is stored."""
        if not self._keep and self._shared:
            self._blocks[0][: self._shared] = self._blocks[0][-self._shared :]

    def blocks(self, steps: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the blocks of the first `steps` steps, from last to first.

        Each is a tuple of its first step, its number of steps and their rows.
        """
        for first in reversed(range(0, steps, self.steps_per_block)):
            count = min(self.steps_per_block, steps - first)
            block = self._blocks[first // self.steps_per_block]
            yield first, count, block[: count * self._stride + self._shared]
