"""Compare folders before and after a case, and damage files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

_TRANSIENT = (".lock", ".tmp")  # a lock may remain, empty or not

DAMAGES = ("empty", "cut", "bits", "random", "list", "text", "gone", "folder", "deep", "number")


def snapshot(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(part.endswith(_TRANSIENT) for part in name.split("/")):
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def lost(before: dict[str, str], after: dict[str, str], allowed: Sequence[str] = ()) -> list[str]:
    """Return the files that are gone or have changed, except those that begin with `allowed`."""
    return [
        name
        for name, value in before.items()
        if after.get(name) != value and not name.startswith(tuple(allowed))
    ]


def damage(path: Path, how: str, draw: random.Random) -> None:
    """Break a file in one of the ways of `DAMAGES`."""
    data = bytearray(path.read_bytes())
    if how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
        return
    if how == "cut":
        data = data[: draw.randrange(len(data)) if data else 0]
    elif how == "bits" and data:
        for _ in range(3):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    else:
        data = bytearray(
            {
                "empty": b"",
                "random": draw.randbytes(max(len(data), 16)),
                "list": b"[1, [2, {}], null]",
                "text": b'"\\ud800 [/red] <script>"',
                "deep": b"[" * 5000,
                "number": b"1e999",
            }.get(how, bytes(data))
        )
    path.write_bytes(data)
