"""The version of scores.json, comparison.json and results.json, written into each of them."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError, brief

VERSION = 2
"""Version 1 had no number: each task laid out its scores in its own way."""


def check_version(path: Path, version: object) -> None:
    """Raise `RunError` if a file is from a newer version than this one."""
    if version not in (1, VERSION):
        raise RunError(
            f"{path} must have a version up to {VERSION}, but has {brief(version)}; install a "
            "newer floater-transformers."
        )
