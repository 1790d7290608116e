"""Columns of CSV and Parquet files, memory-mapped through `datasets` and checked row by row."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...errors import DataError, brief, first_line

_BATCH = 200_000  # rows that are converted at a time
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_LONGEST = 200  # characters of a header that a message quotes


@dataclass(frozen=True)
class Codes:
    """A column of names: the distinct names in the order of the file, and a number for each row."""

    names: list[str]
    codes: NDArray[np.int32]


class ColumnTable:
    """Some columns of a CSV (plain or .gz) or Parquet file.

    The rows stay on disk, memory-mapped; a column is converted when it is asked for.

    Args:
        path: the file; its name ends in .csv, .csv.gz or .parquet.
        columns: names of the columns that are needed.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._parquet = path.name.endswith(".parquet")
        if not self._parquet and not path.name.endswith((".csv", ".csv.gz")):
            raise DataError(f"{path} must be a .csv, .csv.gz or .parquet file, but is not.")
        if not path.is_file():
            raise DataError(f"{path} must be a file, but there is none; check the path.")
        self._check_columns(columns)
        self._data = self._load(list(dict.fromkeys(columns)))

    def __len__(self) -> int:
        return int(self._data.num_rows)

    def release(self) -> None:
        """Forget the rows, when all columns have been read; `where` still works."""
        self._data = None

    def where(self, row: int) -> str:
        """File and line of a row, for messages."""
        return f"{self.path}, {f'row {row + 1}' if self._parquet else f'line {row + 2}'}"

    def stated_unit(self, column: str) -> str:
        """The unit that a Parquet file states for a column; empty if it states none.

        It is in the type of a timestamp or duration, or in the field's metadata as `unit`.
        """
        if not self._parquet:
            return ""
        field = pq.read_schema(self.path).field(column)
        if pa.types.is_timestamp(field.type) or pa.types.is_duration(field.type):
            return _UNITS[field.type.unit]
        unit: bytes = (field.metadata or {}).get(b"unit", b"")
        return unit.decode()

    def numbers(self, column: str, *, empty: float | None = None) -> NDArray[np.float64]:
        """A column of finite numbers.

        Args:
            column: its name.
            empty: what an empty cell stands for; by default it is refused.
        """
        values = np.empty(len(self), dtype=np.float64)
        first = 0
        for chunk in self._chunks(column):
            values[first : first + len(chunk)] = self._converted(chunk, column, first, empty)
            first += len(chunk)
        return values

    def names(self, column: str) -> Codes:
        """A column of names, such as ids; numbers become their decimal text."""
        codes = np.empty(len(self), dtype=np.int32)
        numbers: dict[str, int] = {}
        first = 0
        for chunk in self._chunks(column):
            texts = pc.fill_null(pc.utf8_trim_whitespace(pc.cast(chunk, pa.string())), "")
            encoded = pc.dictionary_encode(texts)
            names = encoded.dictionary.to_pylist()
            if "" in names:
                row = int(np.flatnonzero(encoded.indices.to_numpy() == names.index(""))[0])
                raise DataError(f"{self.where(first + row)}: `{column}` must not be empty, but is.")
            known = np.array([numbers.setdefault(name, len(numbers)) for name in names])
            codes[first : first + len(chunk)] = known[encoded.indices.to_numpy()]
            first += len(chunk)
        return Codes(list(numbers), codes)

    def texts(self, column: str) -> list[str]:
        """A column as text, for small files; an empty cell is an empty text."""
        cells = pc.cast(self._data.column(column), pa.string()).to_pylist()
        return ["" if cell is None else str(cell).strip() for cell in cells]

    def _converted(
        self, chunk: Any, column: str, first: int, empty: float | None
    ) -> NDArray[np.float64]:
        if pa.types.is_timestamp(chunk.type) or pa.types.is_duration(chunk.type):
            chunk = pc.cast(chunk, pa.int64())
        if pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type):
            chunk = pc.utf8_trim_whitespace(chunk)
            if empty is not None:
                chunk = pc.if_else(pc.equal(chunk, ""), pa.scalar(repr(empty)), chunk)
        try:
            numbers = pc.cast(chunk, pa.float64())
        except pa.ArrowNotImplementedError:
            raise DataError(
                f"{self.path}: `{column}` must be a column of numbers, but is one of the type "
                f"{chunk.type}; convert it."
            ) from None
        except pa.ArrowInvalid:
            row = next(row for row, cell in enumerate(chunk.to_pylist()) if not _is_number(cell))
            raise self._not_a_number(column, first + row, chunk[row].as_py()) from None
        if empty is not None:
            numbers = pc.fill_null(numbers, empty)
        values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
        odd = ~np.isfinite(values)
        if empty is not None and np.isnan(empty):
            odd &= ~np.isnan(values)
        if odd.any():
            row = int(np.flatnonzero(odd)[0])
            raise self._not_a_number(column, first + row, chunk[row].as_py())
        return values

    def _not_a_number(self, column: str, row: int, cell: object) -> DataError:
        found = "is empty" if cell in (None, "") else f"is {brief(cell)}"
        return DataError(
            f"{self.where(row)}: `{column}` must be a finite number, but {found}; correct or "
            "remove the row."
        )

    def _chunks(self, column: str) -> list[Any]:
        table = self._data.select([column])
        return [
            batch.column(0) for batch in table.to_batches(max_chunksize=_BATCH) if batch.num_rows
        ]

    def _check_columns(self, columns: Sequence[str]) -> None:
        try:
            if self._parquet:
                metadata = pq.read_metadata(self.path)
                header = list(metadata.schema.to_arrow_schema().names)
                if not metadata.num_rows:
                    raise DataError(f"{self.path} must hold at least one row, but holds none.")
            else:
                compressed = self.path.name.endswith(".gz")
                opened: Any = gzip.open if compressed else open
                with opened(self.path, "rt", encoding="utf-8-sig", newline="") as file:
                    reader = csv.reader(file)
                    header = next(reader, [])
                    if next(reader, None) is None:
                        raise DataError(
                            f"{self.path} must hold at least one row below its header, but holds "
                            "none."
                        )
        except (OSError, EOFError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {first_line(error)}") from None
        self._header = header
        repeated = [name for name in columns if header.count(name) > 1]
        if repeated:
            raise DataError(
                f"{self.path} must have one column {repeated[0]!r}, but has "
                f"{header.count(repeated[0])}; rename the others."
            )
        missing = [name for name in columns if name not in header]
        if missing:
            known = ", ".join(header)
            known = known if len(known) <= _LONGEST else f"{known[:_LONGEST]} …"
            raise DataError(
                f"{self.path} must have a column {missing[0]!r}, but has {known or 'none'}."
            )

    def _load(self, columns: list[str]) -> Any:
        """The Arrow table of these columns, memory-mapped; cells of a CSV file are text."""
        from datasets import Features, Value, load_dataset, utils  # noqa: PLC0415  (slow to import)

        settings: dict[str, Any] = {"columns": columns}
        if not self._parquet:
            settings = {
                "features": Features({name: Value("string") for name in self._header}),
                "na_filter": False,
                "skip_blank_lines": False,
                "encoding": "utf-8-sig",
            }
        bars, level = utils.are_progress_bars_disabled(), utils.logging.get_verbosity()
        utils.disable_progress_bars()
        utils.logging.set_verbosity(utils.logging.CRITICAL)
        try:
            data = load_dataset(
                "parquet" if self._parquet else "csv",
                data_files=str(self.path),
                split="train",
                **settings,
            )
        except Exception as error:  # whatever pandas and pyarrow raise about a damaged file
            cause = error.__cause__ or error.__context__ or error
            reason = first_line(cause if isinstance(cause, Exception) else error).rstrip(".")
            raise DataError(
                f"{self.path} cannot be read: {reason}; correct or remove the row."
            ) from None
        finally:
            utils.logging.set_verbosity(level)
            if not bars:
                utils.enable_progress_bars()
        return data.data.table


def number_first(text: str) -> tuple[float, str]:
    """Numbers in their order, before other texts."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def number_text(value: float) -> str:
    """The shortest text that is read back as the same number."""
    return repr(float(value)).removesuffix(".0")


def _is_number(cell: object) -> bool:
    if "_" in str(cell):  # a number in Python, but not in a file
        return False
    try:
        float(str(cell))
    except ValueError:
        return False
    return True
