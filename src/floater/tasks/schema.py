"""JSON data files, checked field by field; an error names the file and the location in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError, brief, first_line
from ..files import iterate_lines, read_lines

T = TypeVar("T")
_KINDS = {
    str: "text",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def read_json(path: Path) -> Any:
    """Read a JSON file, plain or .gz."""
    return _parse("\n".join(read_lines(path)), path, 0)


def iterate_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Read a JSON lines file, plain or .gz, as pairs of a location for messages and the content of
    the line; empty lines are skipped.
    """
    for number, line in enumerate(iterate_lines(path), 1):
        if line.strip():
            yield f"{path}, line {number}", _parse(line, path, number - 1)


def read_json_lines(path: Path) -> list[tuple[str, Any]]:
    """Read all of a JSON lines file, as `iterate_json_lines` does."""
    return list(iterate_json_lines(path))


def _parse(text: str, path: Path, lines_before: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {lines_before + error.lineno}: must be JSON, but is not: {error.msg}."
        ) from None
    except ValueError as error:  # such as a number of thousands of digits
        raise DataError(
            f"{path}: must be JSON of the data set's schema, but cannot be read: "
            f"{first_line(error)}"
        ) from None
    except RecursionError:
        raise DataError(
            f"{path}: must be JSON of the data set's schema, but is nested too deeply to be read."
        ) from None


def field(entry: Any, key: str, kind: type[T], location: str) -> T:
    """The value of a key, which must exist and have a certain type.

    Args:
        entry: what should be an object with that key.
        key: its name.
        kind: str, int, bool, list or dict.
        location: file and place in it, for messages.
    """
    if not isinstance(entry, dict):
        raise DataError(f"{location}: must be an object with `{key}`, but is {brief(entry)}.")
    if key not in entry:
        raise DataError(
            f"{location}: must have `{key}`, but has {', '.join(map(str, entry)) or 'nothing'}."
        )
    return checked(entry[key], kind, f"`{key}`", location)


def checked(value: Any, kind: type[T], name: str, location: str) -> T:
    """Check the type of a value; text must also be encodable as UTF-8."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DataError(f"{location}: {name} must be {_KINDS[kind]}, but is {brief(value)}.")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{location}: {name} must be Unicode text, but holds half of a surrogate pair; "
                "repair the file."
            ) from None
    return value
