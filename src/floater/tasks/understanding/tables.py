"""Comparisons of several configs as one table, with wins counted as the paper does and as the
intervals allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def digits_of(measure: str) -> int:
    """Decimals that a measure is told with: losses differ by little, all others are in per cent."""
    return 4 if measure == "loss" else 2


def rows(comparisons: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every config, arm, set and measure."""
    return [
        {
            "name": found["name"],
            "arm": arm,
            "set": part,
            "measure": measure,
            "main": measure == found["main"],
            **paired,
        }
        for found in comparisons
        for arm, sets in found["arms"].items()
        for part, measures in sets.items()
        for measure, paired in measures.items()
    ]


def count(comparisons: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Wins, losses and ties of each arm on the main measures; `clear` counts only those whose
    interval excludes 0.
    """
    found: dict[str, dict[str, int]] = {}
    for comparison in comparisons:
        sign = 1 if comparison["more_is_better"] else -1
        for arm, sets in comparison["arms"].items():
            tally = found.setdefault(
                arm,
                dict.fromkeys(
                    ("wins", "losses", "ties", "clear wins", "clear losses", "unclear"), 0
                ),
            )
            for measures in sets.values():
                paired = measures[comparison["main"]]
                low, high = sorted((sign * paired["low"], sign * paired["high"]))
                by = sign * paired["difference"]
                tally["wins" if by > 0 else "losses" if by < 0 else "ties"] += 1
                tally["clear wins" if low > 0 else "clear losses" if high < 0 else "unclear"] += 1
    return found


def markdown(comparisons: Sequence[dict[str, Any]]) -> str:
    """The table, the counts below it, and what was seen before training; several seeds are told one
    by one too.
    """
    several = any(len(found["seeds"]) > 1 for found in comparisons)
    columns = [
        "config",
        "set",
        "measure",
        "arm",
        "base",
        "arm's",
        "difference",
        "95 % interval",
        "p",
        "examples",
    ]
    columns += ["base by seed", "arm's by seed"] if several else []
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows(comparisons):
        measure = f"**{row['measure']}**" if row["main"] else row["measure"]
        digits = digits_of(row["measure"])
        base, other = (f"{row[key]:.{digits}f}" for key in ("base", "other"))
        by, low, high = (f"{row[key]:+.{digits}f}" for key in ("difference", "low", "high"))
        cells = [
            row["name"],
            row["set"],
            measure,
            row["arm"],
            base,
            other,
            by,
            f"{low} to {high}",
            f"{row['p_value']:.3f}",
            f"{row['examples']:,}",
        ]
        cells += (
            [", ".join(f"{one:.{digits}f}" for one in values) for values in row["seeds"].values()]
            if several
            else []
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        (
            "Medians over seeds; paired bootstrap over examples, the same resamples for all seeds. "
            "Main measures are bold."
        ),
        "",
    ]
    lines += [f"- {line}" for line in conclusions(comparisons)]
    return "\n".join(lines) + "\n"


def conclusions(comparisons: Sequence[dict[str, Any]]) -> list[str]:
    """The counts, and what was seen before training, one sentence each."""
    lines = [
        f"{arm}, counted as the paper does: {tally['wins']} wins, {tally['losses']} losses, "
        f"{tally['ties']} ties; by intervals that exclude 0: {tally['clear wins']} wins, "
        f"{tally['clear losses']} losses, {tally['unclear']} open."
        for arm, tally in count(comparisons).items()
    ]
    seen: dict[str, dict[str, None]] = {}
    for found in comparisons:
        for words in sorted(map(described, found["start"].values())):
            seen.setdefault(words, {})[found["name"]] = None
    return [
        *lines,
        *(f"{', '.join(names)}, before training: {words}." for words, names in seen.items()),
    ]


def described(start: Mapping[str, Any]) -> str:
    """What was seen of the arms before training, in words."""
    same = "identical to the bit" if start["identical"] else "NOT identical"
    fresh = (
        " with fresh encoders in place of the trained ones"
        if start["fresh_in_place_of_trained"]
        else ""
    )
    return f"the arms' logits on {start['inputs']} inputs are {same}{fresh}"
