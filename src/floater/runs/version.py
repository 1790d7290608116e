"""The version of run.json, scores.json, comparison.json and results.json."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError, brief

VERSION = 2
"""Version 1 had no number: each task laid out its scores in its own way."""


def check_version(path: Path, version: object) -> None:
    """Raise `RunError` if a file is from a newer version, or has no valid version."""
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise RunError(
            f"{path} must have a version up to {VERSION}, but has {version}; install a newer "
            "floater-transformers."
        )
    if isinstance(version, bool) or version not in (1, VERSION):
        raise RunError(
            f"{path} is damaged: its version must be an integer from 1 to {VERSION}, but is "
            f"{brief(version)}; restore a copy."
        )
