"""All families of cases, and the loop that runs them."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .cases import FAILURES, OUTCOMES, Case
from .damaged_files import damaged_models, damaged_runs
from .full_disks import full_disks
from .interruptions import stops, two_at_once
from .kills import kills, kills_of_saving
from .odd_calls import odd_calls
from .odd_configs import odd_configs
from .odd_reports import odd_reports
from .world import World

FAMILIES: dict[str, tuple[int, Callable[[World, random.Random], Iterator[Case]]]] = {
    "damaged runs": (90, damaged_runs),
    "damaged models": (60, damaged_models),
    "odd configs": (60, odd_configs),
    "kills": (25, kills),
    "kills of saving": (30, kills_of_saving),
    "full disks": (35, full_disks),
    "two at once": (14, two_at_once),
    "stops": (14, stops),
    "odd reports": (60, odd_reports),
    "odd calls": (60, odd_calls),
}
"""Families of cases, each with its number of cases in a full round."""


def torture(
    seconds: float, seed: int, only: Sequence[str] = (), report: Callable[[str], None] = print
) -> Counter[tuple[str, str]]:
    """Run cases until the time is over or a full round is done.

    Args:
        seconds: time limit, including the time to build the world.
        seed: of all random draws.
        only: families to run; default: all.
        report: called with a description of each failure.

    Returns:
        Counts by family and outcome.
    """
    started = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="torture-") as root:
        world = World(Path(root))
        chosen = {name: family for name, family in FAMILIES.items() if not only or name in only}
        cases = {
            name: make(world, random.Random(f"{seed} {name}")) for name, (_, make) in chosen.items()
        }
        left = {name: count for name, (count, _) in chosen.items()}
        while any(left.values()) and time.monotonic() - started < seconds:
            # all families advance at the same rate
            name = max(left, key=lambda family: left[family] / chosen[family][0])
            left[name] -= 1
            case = next(cases[name], None)
            if case is None:
                left[name] = 0
                continue
            with tempfile.TemporaryDirectory(prefix="case-", dir=root) as place:
                outcome, details = case.attempt(Path(place))
            counts[name, outcome] += 1
            if outcome in FAILURES:
                lines = details.strip().splitlines()[-12:]
                report(f"{outcome.upper()} in {name}: {case.name}\n    " + "\n    ".join(lines))
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    """Format counts as a table, one family per line."""
    families = list(dict.fromkeys(family for family, _ in counts))
    rows = [f"{'':16}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for family in families:
        rows.append(_row(family, [counts[family, outcome] for outcome in OUTCOMES]))
    totals = [sum(counts[family, outcome] for family in families) for outcome in OUTCOMES]
    return "\n".join([*rows, _row("all", totals)])


def _row(name: str, numbers: Sequence[int]) -> str:
    return f"{name:16}" + "".join(f"{number:>11}" for number in numbers)
