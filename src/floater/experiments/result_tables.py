"""Cells, tables and figures from runs, and tables on the terminal."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from ..printing import print_text
from ..runs.folder import RunFolder
from ..runs.results import Cell, Figure, Mean, Paper, Results, Series, Table
from ..runs.scores import Difference, Score
from .scheduler import Runs
from .variants import Variant


def mean(values: Iterable[float]) -> Mean:
    """Mean and standard deviation over seeds."""
    numbers = list(values)
    return Mean(
        mean=statistics.fmean(numbers),
        deviation=statistics.stdev(numbers) if len(numbers) > 1 else None,
        seeds=len(numbers),
    )


def score(
    run: RunFolder, measure: str, label: str | None = None, *, test_set: str = "test"
) -> float | None:
    """The score of a run on a test set, or in one bin of it; None if the bin is empty."""
    value = _score(run, measure, label, test_set)
    return None if value is None else value.score


def _score(run: RunFolder, measure: str, label: str | None, test_set: str = "test") -> Score | None:
    test = run.scores().sets[test_set]
    scores = test.scores if label is None else test.bins[label].scores
    return scores.get(measure)


def test_data(runs: Runs) -> str:
    """The source of the test set."""
    return str(next(iter(runs.values()))[0].scores().sets["test"].data["from"])


def scored(
    runs: Sequence[RunFolder], metric: str, label: str | None = None, *, test_set: str = "test"
) -> Mean | None:
    """Mean of a score over seeds; None if the bin is empty."""
    scores = [score(run, metric, label, test_set=test_set) for run in runs]
    values = [value for value in scores if value is not None]
    return mean(values) if values else None


def length_bins(runs: Runs) -> dict[str, int]:
    """The bins of source length, with their numbers of sentences."""
    first = next(iter(runs.values()))[0]
    return {label: bin.examples for label, bin in first.scores().sets["test"].bins.items()}


def fact(runs: Sequence[RunFolder], name: str) -> float | int | Mean | None:
    """A recorded fact of runs: the value if all agree, otherwise the mean; None if one lacks it."""
    values: list[Any] = [run.facts().get(name) for run in runs]
    if any(value is None for value in values):
        return None
    return values[0] if len(set(values)) == 1 else mean(values)


def banded(
    name: str,
    runs: Sequence[RunFolder],
    points: Sequence[tuple[str, str | None]],
    *,
    test_set: str = "test",
) -> Series:
    """A line of scores with a band: the deviation over seeds; with one seed, the confidence
    interval over examples.

    Args:
        name: what the legend calls it.
        runs: one for each seed.
        points: measure and bin of each point; None for the whole test set.
        test_set: name of the test set.
    """
    middles, lows, highs = [], [], []
    for measure, label in points:
        cell = scored(runs, measure, label, test_set=test_set)
        spread = None if cell is None else _spread(runs, cell, measure, label, test_set=test_set)
        middles.append(None if cell is None else cell.mean)
        lows.append(None if cell is None or spread is None else cell.mean - spread)
        highs.append(None if cell is None or spread is None else cell.mean + spread)
    return Series(name=name, y=middles, low=lows, high=highs)


def by_length(
    variants: Sequence[Variant], runs: Runs, metric: str, title: str, label: str
) -> Figure:
    """A figure of a score by source length, with one line per variant.

    The bands are the deviation over seeds; with one seed, the confidence interval over sentences.

    Args:
        variants: the variants.
        runs: their runs.
        metric: name of the score.
        title: of the figure.
        label: of the y axis.
    """
    names = list(length_bins(runs))
    series = [
        banded(variant.name, runs[variant.key], [(metric, name) for name in names])
        for variant in variants
    ]
    return Figure(
        title=title, x_label="source length, tokens", y_label=label, x=list(names), series=series
    )


def seeds_note(runs: Runs) -> str:
    """The end of a note on a table of means: what stands after ±; empty with one seed."""
    count = max(len(folders) for folders in runs.values())
    return f" Means ± standard deviation of {count} seeds." if count > 1 else ""


def _spread(
    runs: Sequence[RunFolder],
    cell: Mean,
    metric: str,
    label: str | None,
    *,
    test_set: str = "test",
) -> float | None:
    if cell.deviation is not None:
        return cell.deviation
    value = _score(runs[0], metric, label, test_set)
    return None if value is None else value.interval


def against(base: RunFolder, other: RunFolder) -> str:
    """A paired bootstrap test of two runs as text; it is stored in the scores of `other`."""
    from ..tasks.translation.evaluation import compare  # noqa: PLC0415  (imports torch)

    recorded = other.scores().paired
    paired = next((test for test in recorded if test.against == base.path.name), None)
    if paired is None:
        paired = compare(base, other, "test")
        other.add_paired([paired])
    return difference_text(paired)


def difference_text(difference: Difference) -> str:
    """A difference with its interval and p-value as text."""
    return (
        f"{difference.difference:+.2f} ({difference.low:+.2f} to {difference.high:+.2f}, p = "
        f"{difference.p_value:.3f})"
    )


def lead_table(
    recommended: str, variants: Sequence[Variant], runs: Runs, *, whole: bool = False
) -> Table:
    """The lead in BLEU of one variant over each of the others, in each bin of source length or on
    the whole test set.
    """
    from ..tasks.translation.evaluation import compare_by_length  # noqa: PLC0415  (imports torch)

    others = [variant for variant in variants if variant.key != recommended]
    leads = compare_by_length(
        runs[recommended], {variant.key: runs[variant.key] for variant in others}, whole=whole
    )
    labels = list(dict.fromkeys(label for lead in leads.values() for label in lead))
    rows: list[list[Cell]] = []
    for variant in others:
        lead = leads[variant.key]
        texts = [difference_text(lead[label]) if label in lead else None for label in labels]
        rows.append([variant.name, *texts])
    name = next(variant.name for variant in variants if variant.key == recommended)
    several = max(len(folders) for folders in runs.values()) > 1
    return Table(
        title=f"Lead of {name} in BLEU (95 %, p)",
        note=(
            "Difference of the means over seeds; interval and p-value from a bootstrap over lines "
            "and seeds."
            if several
            else "Interval and p-value from a bootstrap over lines. There is one seed: chance in "
            "training is not part of them."
        ),
        columns=["over", *labels],
        rows=rows,
    )


def show(results: Results, console: Console) -> None:
    """Print tables, headline and summary."""
    for table in results.tables:
        _show_table(table, console)
    for line in [*results.headline, *results.summary]:
        print_text(console, line, wrap=True)


def _show_table(table: Table, console: Console) -> None:
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    if _narrowest(table.columns, rows) > console.width:
        _show_rows(table, rows, console)
        return
    printed = Printed(
        title=Text(table.title),
        caption=Text(table.note) if table.note else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for number, heading in enumerate(table.columns):
        printed.add_column(
            Text(heading),
            justify="right" if number else "left",
            no_wrap=not number,
            overflow="fold",
        )
    for row in rows:
        printed.add_row(*map(Text, row))  # Text: names may look like markup
    console.print(printed, highlight=False, markup=False)


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width that a table needs without broken words, and with an unbroken first column."""
    first, *others = zip(columns, *rows, strict=True)
    needed = [
        max(map(len, first)),
        *(max(len(word) for cell in column for word in cell.split() or [""]) for column in others),
    ]
    return sum(needed) + 3 * len(columns)


def _show_rows(table: Table, rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print a table that is too wide for the terminal as one paragraph per row."""
    lines = [table.title]
    for name, *cells in rows:
        paragraph = " · ".join(
            f"{heading} {cell}"
            for heading, cell in zip(table.columns[1:], cells, strict=True)
            if cell != cell_text(None)
        )
        width = max(console.width - 4, 20)
        lines.append(f"  {name}")
        lines += [f"    {line}" for line in textwrap.wrap(paragraph, width, break_on_hyphens=False)]
    if table.note:
        lines.append(table.note)
    print_text(console, "\n".join(lines), wrap=True)


def cell_text(cell: object) -> str:
    """A cell as text; numbers of the paper are in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Mean):
        text = _number(cell.mean, cell.digits)
        spread = cell.deviation
        return text if spread is None else f"{text} ± {_number(spread, cell.digits)}"
    if isinstance(cell, Paper):
        return f"[{_number(cell.paper)}]"
    return _number(cell) if isinstance(cell, int | float) else str(cell)


def _number(value: float, digits: int = 2) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) >= 1000)
    return f"{int(value):,}" if whole else f"{value:.{digits}f}"


def verdict(
    variants: Sequence[Variant], runs: Runs, metric: str, name: str, label: str | None = None
) -> str | None:
    """A clause about the best variant, and whether its lead exceeds the spread.

    The spread is the deviation over seeds; with one seed, the confidence interval over sentences.

    Args:
        variants: the variants.
        runs: their runs.
        metric: key of the score.
        name: name of the score for the text.
        label: bin of source length; default: the whole test set.

    Returns:
        The clause; None if there are no scores.
    """
    ranking = [
        (cell.mean, _spread(runs[variant.key], cell, metric, label) or 0.0, variant.name)
        for variant in variants
        if (cell := scored(runs[variant.key], metric, label)) is not None
    ]
    if not ranking:
        return None
    (best, best_spread, best_name), *rest = sorted(ranking, reverse=True)
    if not rest:
        return f"{best_name} has {name} {best:.1f}"
    second, second_spread, second_name = rest[0]
    if best == second:
        return f"no variant leads; the highest {name} is {best:.1f}"
    close = " (within their spread)" if best - second <= best_spread + second_spread else ""
    return (
        f"{best_name} leads with {name} {best:.1f}, ahead of {second_name} with {second:.1f}{close}"
    )
