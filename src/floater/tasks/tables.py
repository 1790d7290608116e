"""Rows of named columns, from TSV files or the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import read_lines


@dataclass(frozen=True)
class Table:
    """The cells of a TSV file, row by row, with the line each row stands in."""

    path: Path
    columns: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """The cells of a column, which must be there."""
        if name not in self.columns:
            raise DataError(f"{self.path} must have a column {name!r}, but its header names {', '.join(self.columns)}.")
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def place(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"{self.path}, line {self.lines[row]}"


def read_tsv(path: Path, header: Sequence[str] | None = None, *, skip_broken: bool = False) -> Table:
    """A TSV file, plain or .gz. Quotes are text.

    Args:
        path: the file.
        header: names of the columns, where the file does not begin with them.
        skip_broken: leave out rows that do not have a cell for every column, instead of refusing the file.
    """
    lines = read_lines(path)
    columns = lines.pop(0).split("\t") if header is None else list(header)
    found = Table(path, columns, [], [])
    for number, line in enumerate(lines, 2 if header is None else 1):
        cells = line.split("\t")
        if len(cells) == len(columns):
            found.rows.append(cells)
            found.lines.append(number)
        elif not skip_broken:
            raise DataError(f"{path}, line {number}: must have {len(columns)} columns, but has {len(cells)}.")
    if not found.rows:
        raise DataError(f"{path} must hold at least one row below its header, but holds none.")
    return found


def from_hub(name: str, config: str, part: str) -> Any:
    """One part of a data set of the Hugging Face hub."""
    from datasets import load_dataset  # noqa: PLC0415  (slow to import, and only needed here)

    try:
        return load_dataset(name, config, split=part)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"The data set {name} ({config}, {part}) cannot be loaded: {str(error).splitlines()[0]}") from None
