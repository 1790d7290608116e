"""Rows of named columns, from TSV files or the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import read_lines

_LONGEST = 200  # characters of a header that a message repeats
_BROKEN = 0.05  # share of broken rows up to which a file is taken without them


@dataclass(frozen=True)
class Table:
    """The cells of a TSV file, row by row, with the line each row stands in."""

    path: Path
    columns: list[str]
    rows: list[list[str]]
    lines: list[int]
    broken: int = 0
    """Rows that were left out."""

    def column(self, name: str) -> list[str]:
        """The cells of a column, which must be there."""
        if name not in self.columns:
            named = ", ".join(self.columns)
            named = named if len(named) <= _LONGEST else f"{named[:_LONGEST]} …"
            raise DataError(
                f"{self.path}, line 1: must have a column {name!r}, but its header names {named}."
            )
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def place(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"{self.path}, line {self.lines[row]}"


def read_tsv(
    path: Path, header: Sequence[str] | None = None, *, skip_broken: bool = False
) -> Table:
    """A TSV file, plain or .gz. Quotes are text.

    Args:
        path: the file.
        header: names of the columns, where the file does not begin with them.
        skip_broken: leave out rows that do not have a cell for every column, if they are few,
            instead of refusing the file.
    """
    lines = read_lines(path)
    columns = lines.pop(0).split("\t") if header is None else list(header)
    rows, numbers, broken = [], [], []
    for number, line in enumerate(lines, 2 if header is None else 1):
        cells = line.split("\t")
        if len(cells) == len(columns):
            rows.append(cells)
            numbers.append(number)
        else:
            broken.append((number, len(cells)))
    if broken and not (skip_broken and len(broken) <= _BROKEN * len(lines)):
        number, count = broken[0]
        more = f"; so have {len(broken) - 1:,} further lines" if skip_broken else ""
        raise DataError(
            f"{path}, line {number}: must have {len(columns)} columns, but has {count}{more}."
        )
    if not rows:
        raise DataError(f"{path} must hold at least one row below its header, but holds none.")
    return Table(path, columns, rows, numbers, len(broken))


def from_hub(name: str, config: str, part: str) -> Any:
    """One part of a data set of the Hugging Face hub."""
    from datasets import load_dataset  # noqa: PLC0415  (slow to import, and only needed here)

    try:
        return load_dataset(name, config, split=part)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"The data set {name} ({config}, {part}) cannot be loaded: {str(error).splitlines()[0]}"
        ) from None
