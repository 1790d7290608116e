"""JSON data files, checked field by field: what is wrong is said in one line that names its
place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError, brief, first_line
from ..files import read_lines

T = TypeVar("T")
_KINDS = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def read_json(path: Path) -> Any:
    """What a JSON file, plain or .gz, holds."""
    return _parse("\n".join(read_lines(path)), path, 0)


def read_json_lines(path: Path) -> list[tuple[str, Any]]:
    """What each line of a JSON lines file, plain or .gz, holds, after the name of its place; empty
    lines are passed over.
    """
    rows = enumerate(read_lines(path), 1)
    return [
        (f"{path}, line {number}", _parse(line, path, number - 1))
        for number, line in rows
        if line.strip()
    ]


def _parse(text: str, path: Path, above: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {above + error.lineno}: must be JSON, but is not: {error.msg}."
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


def field(holder: Any, key: str, kind: type[T], place: str) -> T:
    """The value of a key, which must be there and of a kind.

    Args:
        holder: what should be an object with that key.
        key: its name.
        kind: str, int, bool, list or dict.
        place: where in which file, for the message.
    """
    if not isinstance(holder, dict):
        raise DataError(f"{place}: must be an object with `{key}`, but is {brief(holder)}.")
    if key not in holder:
        raise DataError(
            f"{place}: must have `{key}`, but has {', '.join(map(str, holder)) or 'nothing'}."
        )
    return checked(holder[key], kind, f"`{key}`", place)


def checked(value: Any, kind: type[T], name: str, place: str) -> T:
    """The value, which must be of a kind; text must be text that can be written as UTF-8."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DataError(f"{place}: {name} must be {_KINDS[kind]}, but is {brief(value)}.")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{place}: {name} must be Unicode text, but holds half of a surrogate pair; repair "
                "the file."
            ) from None
    return value
