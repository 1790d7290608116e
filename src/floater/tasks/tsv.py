"""Tables with named columns, from TSV files or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import read_lines

_LONGEST = 200  # characters of a header that a message quotes
_BROKEN = 0.05  # largest share of broken rows that may be skipped


@dataclass(frozen=True)
class TsvTable:
    """The rows of a TSV file, with the line number of each."""

    path: Path
    columns: list[str]
    rows: list[list[str]]
    lines: list[int]
    broken: int = 0
    """Number of rows that were skipped."""

    def column(self, name: str) -> list[str]:
        """The cells of a column, which must exist."""
        if name not in self.columns:
            header = ", ".join(self.columns)
            header = header if len(header) <= _LONGEST else f"{header[:_LONGEST]} …"
            raise DataError(
                f"{self.path}, line 1: must have a column {name!r}, but its header names {header}."
            )
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def location(self, row: int) -> str:
        """File and line of a row, for messages."""
        return f"{self.path}, line {self.lines[row]}"


def read_tsv(
    path: Path, header: Sequence[str] | None = None, *, skip_broken: bool = False
) -> TsvTable:
    """Read a TSV file, plain or .gz. Quotes have no special meaning.

    Args:
        path: the file.
        header: names of the columns, for files without a header.
        skip_broken: skip rows with a wrong number of cells if there are few of them, instead of
            refusing the file.
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
        more = f"; {len(broken) - 1:,} further lines are broken too" if skip_broken else ""
        raise DataError(
            f"{path}, line {number}: must have {len(columns)} columns, but has {count}{more}."
        )
    if not rows:
        raise DataError(f"{path} must hold at least one row below its header, but holds none.")
    return TsvTable(path, columns, rows, numbers, len(broken))


def from_hub(name: str, config: str, split: str) -> Any:
    """Load one split of a data set of the Hugging Face hub."""
    from datasets import load_dataset  # noqa: PLC0415  (slow to import, and only needed here)

    try:
        return load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"The data set {name} ({config}, {split}) cannot be loaded: "
            f"{str(error).splitlines()[0]}"
        ) from None
