"""JSON objects with a hash of their content, so that a damaged or edited file is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..errors import RunError, brief, first_line
from ..files import write_text

_HASH = "facts_sha256"
"""Key that holds the hash of all other keys."""
_ADVICE = "restore a copy, or move it away and create it again."


def write_checked(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object together with its hash."""
    plain = json.loads(json.dumps(values, default=str))
    write_text(path, json.dumps({**plain, _HASH: _hash(plain)}, indent=2) + "\n")


def read_checked(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file gives an empty one.

    Raises:
        RunError: the file is not a JSON object, or does not match its recorded hash. A file
            without a hash is accepted.
    """
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {first_line(error).rstrip('.')}; {_ADVICE}") from None
    if not isinstance(values, dict):
        raise RunError(
            f"{path} is damaged: it must hold an object, but holds {brief(values)}; {_ADVICE}"
        )
    recorded = values.pop(_HASH, None)
    if recorded is not None and recorded != _hash(values):
        raise RunError(
            f"{path} is damaged or was changed: its hash is not the recorded one; restore a copy, "
            f"or remove `{_HASH}` from it if you changed it yourself."
        )
    return values


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
