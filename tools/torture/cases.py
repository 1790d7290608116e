"""A case, its outcomes, and values that no setting expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAILURES = ("wrong", "lost", "traceback", "hang")
OUTCOMES = ("right", "refused", *FAILURES)

Verdict = tuple[str, str]
"""An outcome and, for failures, the details to print."""

SAVED_ANYWAY = ("metrics.jsonl", "run.json")
"""Files of a run that a refused command may change."""

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**9, 10**30, -(10**30), 1e-300, 1e300, float("nan"), float("inf")),
    *("", "x", "[/red]", "${NOTHING}", "../../..", "\x00", "é" * 300),
    *([], [1], {}, {"a": {"b": 1}}, [[[]]]),
)
"""Values to put in place of a setting or a record."""


@dataclass(frozen=True)
class Case:
    """One attempt to break something."""

    name: str
    """Enough to find the case again."""
    attempt: Callable[[Path], Verdict]
    """What to do in an empty folder."""
