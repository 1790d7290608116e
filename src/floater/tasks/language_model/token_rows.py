"""Rows of tokens in a file: text of any size takes little memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from ...errors import DataError

_CHUNK = 2**22  # tokens that are counted at a time


class TokenRows(Sequence[np.ndarray]):
    """Rows of tokens, read from a temporary file that disappears with them.

    Args:
        rows: tokens of each row; read once.
    """

    def __init__(self, rows: Iterable[np.ndarray]) -> None:
        lengths: list[int] = []
        self._tokens = np.empty(0, np.int32)
        try:
            with tempfile.TemporaryFile(prefix="floater-") as file:
                for row in rows:
                    file.write(row.astype(np.int32).tobytes())
                    lengths.append(len(row))
                file.flush()
                if sum(lengths):
                    self._tokens = np.memmap(file, np.int32, mode="r")  # outlives the open file
        except OSError as error:
            raise DataError(
                f"There must be room for the tokens of the text in {tempfile.gettempdir()}, but "
                f"after {sum(lengths):,} of them: {error.strerror}; set TMPDIR to another folder, "
                "or use less text (`max_train`)."
            ) from None
        self.lengths = np.array(lengths, dtype=np.int64)
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, number: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, number: slice) -> list[np.ndarray]: ...
    def __getitem__(self, number: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        end = self._ends[number]
        return np.array(self._tokens[end - self.lengths[number] : end], dtype=np.int64)

    def counts(self, size: int) -> np.ndarray:
        """How often each of the first `size` tokens occurs."""
        total = np.zeros(size, dtype=np.int64)
        for chunk in self._chunks():
            total += np.bincount(chunk, minlength=size)[:size]
        return total

    def _chunks(self) -> Iterator[np.ndarray]:
        for first in range(0, len(self._tokens), _CHUNK):
            yield self._tokens[first : first + _CHUNK]
