"""Comparisons of several configs in one table, with wins counted as in the paper and by confidence
intervals.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...runs.comparison import Comparison, StartCheck, VariantScore

_WIDTH = 100  # columns of the lines around the table
_METHOD = (
    "Medians over seeds, means over folds; paired bootstrap over examples, the same resamples for "
    "all seeds. Main measures are bold."
)


def digits_of(measure: str) -> int:
    """Decimals to print: losses and errors differ by little, other measures are percentages."""
    name = measure.split(maxsplit=1)[0]  # "loss 0-128" is the loss in a bin
    return 4 if name in ("loss", "mse", "mae", "rmse", "log_likelihood") else 2


def count_wins(comparisons: Sequence[Comparison]) -> dict[str, dict[str, int]]:
    """Count wins, losses and ties of each variant on the main measures.

    A win or loss is `clear` if the interval of the difference excludes 0.
    """
    names = ("wins", "losses", "ties", "clear wins", "clear losses", "unclear")
    counts: dict[str, dict[str, int]] = {}
    for comparison in comparisons:
        sign = 1 if comparison.more_is_better else -1
        for row in (row for row in comparison.rows if row.measure == comparison.main):
            tally = counts.setdefault(row.variant, dict.fromkeys(names, 0))
            low, high = sorted((sign * row.low, sign * row.high))
            gain = sign * row.difference
            tally["wins" if gain > 0 else "losses" if gain < 0 else "ties"] += 1
            tally["clear wins" if low > 0 else "clear losses" if high < 0 else "unclear"] += 1
    return counts


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons as a Markdown table, with the counts and the check before training below.

    With several seeds, the scores of each seed are listed too.
    """
    several = any(len(comparison.seeds) > 1 for comparison in comparisons)
    columns = [
        *("config", "set", "measure", "variant", "base score", "variant score", "difference"),
        *("95 % interval", "p", "examples"),
        *(("base by seed", "variant by seed") if several else ()),
    ]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for comparison in comparisons:
        for row in comparison.rows:
            cells = _cells(comparison, row, several=several)
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *textwrap.wrap(_METHOD, _WIDTH), ""]
    for line in conclusions(comparisons):
        lines += textwrap.wrap(f"- {line}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _cells(comparison: Comparison, row: VariantScore, *, several: bool) -> list[str]:
    digits = digits_of(row.measure)
    cells = [
        comparison.name,
        row.test_set,
        f"**{row.measure}**" if row.measure == comparison.main else row.measure,
        row.variant,
        *("–" if value is None else f"{value:.{digits}f}" for value in (row.base, row.other)),
        f"{row.difference:+.{digits}f}",
        f"{row.low:+.{digits}f} to {row.high:+.{digits}f}",
        f"{row.p_value:.3f}",
        "–" if row.examples is None else f"{row.examples:,}",
    ]
    if several:
        cells += [
            ", ".join(f"{value:.{digits}f}" for value in scores) for scores in row.seeds.values()
        ]
    return cells


def conclusions(comparisons: Sequence[Comparison]) -> list[str]:
    """The counts and the checks before training, one sentence each."""
    lines = [
        f"{variant}, counted as the paper does: {tally['wins']} wins, {tally['losses']} losses, "
        f"{tally['ties']} ties; by intervals that exclude 0: {tally['clear wins']} wins, "
        f"{tally['clear losses']} losses, {tally['unclear']} open."
        for variant, tally in count_wins(comparisons).items()
    ]
    bases = {comparison.name: comparison.base for comparison in comparisons}
    lines += [f"{name}: the base is {base}." for name, base in bases.items() if base != "base"]
    names: dict[str, dict[str, None]] = {}
    for comparison in comparisons:
        for text in sorted(map(describe_start, comparison.start.values())):
            names.setdefault(text, {})[comparison.name] = None
    return [
        *lines,
        *(f"{', '.join(configs)}, before training: {text}." for text, configs in names.items()),
    ]


def describe_start(start: StartCheck) -> str:
    """The check before training as text."""
    same = "identical to the bit" if start.identical else "NOT identical"
    fresh = (
        " with fresh encoders in place of the trained ones"
        if start.fresh_in_place_of_trained
        else ""
    )
    return f"the variants' logits on {start.inputs} inputs are {same}{fresh}"
