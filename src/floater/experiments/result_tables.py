"""From runs to cells, tables and figures of results, and from those to the terminal."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from ..runs.folder import RunFolder
from ..runs.results import Figure, Mean, Paper, Results, Series, Table
from ..runs.scores import Score
from .scheduler import Runs
from .variants import Variant


def mean(values: Iterable[float]) -> Mean:
    """Mean and standard deviation over seeds."""
    found = list(values)
    return Mean(
        mean=statistics.fmean(found),
        deviation=statistics.stdev(found) if len(found) > 1 else None,
        seeds=len(found),
    )


def score(run: RunFolder, measure: str, label: str | None = None) -> float | None:
    """The score of a run on its test set, or in one bin of it; None for an empty bin."""
    value = _score(run, measure, label)
    return None if value is None else value.score


def _score(run: RunFolder, measure: str, label: str | None) -> Score | None:
    test = run.scores().sets["test"]
    scores = test.scores if label is None else test.bins[label].scores
    return scores.get(measure)


def test_data(runs: Runs) -> str:
    """Where the test set comes from."""
    return str(next(iter(runs.values()))[0].scores().sets["test"].data["from"])


def scored(runs: Sequence[RunFolder], metric: str, label: str | None = None) -> Mean | None:
    """A score over seeds."""
    found = [value for run in runs if (value := score(run, metric, label)) is not None]
    return mean(found) if found else None


def bins(runs: Runs) -> dict[str, int]:
    """The bins of source length, and how many sentences each holds."""
    first = next(iter(runs.values()))[0]
    return {label: bin.examples for label, bin in first.scores().sets["test"].bins.items()}


def fact(runs: Sequence[RunFolder], name: str) -> float | int | Mean | None:
    """A fact of the runs: itself where all agree, else its mean."""
    found: list[Any] = [run.facts().get(name) for run in runs]
    if any(value is None for value in found):
        return None
    return found[0] if len(set(found)) == 1 else mean(found)


def by_length(
    variants: Sequence[Variant], runs: Runs, metric: str, title: str, label: str
) -> Figure:
    """A figure: a score in each bin of source length, a line a variant; over one seed with the
    interval of its sentences.
    """
    names = list(bins(runs))
    series = []
    for variant in variants:
        cells = [scored(runs[variant.key], metric, name) for name in names]
        spreads = [
            _spread(runs[variant.key], cell, metric, name)
            for cell, name in zip(cells, names, strict=True)
        ]
        pairs = list(zip(cells, spreads, strict=True))
        series.append(
            Series(
                name=variant.name,
                y=[None if cell is None else cell.mean for cell in cells],
                low=[
                    None if cell is None or spread is None else cell.mean - spread
                    for cell, spread in pairs
                ],
                high=[
                    None if cell is None or spread is None else cell.mean + spread
                    for cell, spread in pairs
                ],
            )
        )
    return Figure(
        title=title, x_label="source length, tokens", y_label=label, x=list(names), series=series
    )


def _spread(
    runs: Sequence[RunFolder], cell: Mean | None, metric: str, label: str | None
) -> float | None:
    if cell is None or cell.deviation is not None:
        return None if cell is None else cell.deviation
    value = _score(runs[0], metric, label)
    return None if value is None else value.interval


def against(base: RunFolder, other: RunFolder) -> str:
    """A paired bootstrap of two runs, in a few words; kept in the scores of the other run."""
    from ..tasks.translation.evaluation import compare  # noqa: PLC0415  (torch is slow to import)

    recorded = other.scores().paired
    paired = next((test for test in recorded if test.against == base.path.name), None)
    if paired is None:
        paired = compare(base, other, "test")
        other.add_paired([paired])
    return (
        f"{paired.difference:+.2f} ({paired.low:+.2f} to {paired.high:+.2f}, p = "
        f"{paired.p_value:.3f})"
    )


def show(results: Results, console: Console) -> None:
    """Print summary and tables."""
    for table in results.tables:
        _show_table(table, console)
    for line in results.summary:
        console.print(line, highlight=False, markup=False)


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
        printed.add_row(*map(Text, row))  # a name is no markup
    console.print(printed, highlight=False, markup=False)


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters a table needs if words and numbers stay whole; its first column stays as it is."""
    first, *others = zip(columns, *rows, strict=True)
    needed = [
        max(map(len, first)),
        *(max(len(word) for cell in column for word in cell.split() or [""]) for column in others),
    ]
    return sum(needed) + 3 * len(columns)


def _show_rows(table: Table, rows: Sequence[Sequence[str]], console: Console) -> None:
    """A table that is wider than the terminal, as a paragraph a row: numbers broken in two are no
    numbers.
    """
    lines = [table.title]
    for name, *cells in rows:
        told = " · ".join(
            f"{heading} {cell}"
            for heading, cell in zip(table.columns[1:], cells, strict=True)
            if cell != cell_text(None)
        )
        lines += [
            f"  {name}",
            *(
                f"    {line}"
                for line in textwrap.wrap(told, max(console.width - 4, 20), break_on_hyphens=False)
            ),
        ]
    console.print(
        "\n".join([*lines, *([table.note] if table.note else [])]), highlight=False, markup=False
    )


def cell_text(cell: object) -> str:
    """A cell as the terminal shows it; the paper's own numbers stand in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Mean):
        text = _number(cell.mean)
        return text if cell.deviation is None else f"{text} ± {_number(cell.deviation)}"
    if isinstance(cell, Paper):
        return f"[{_number(cell.paper)}]"
    return _number(cell) if isinstance(cell, int | float) else str(cell)


def _number(value: float) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) >= 1000)
    return f"{int(value):,}" if whole else f"{value:.2f}"


def verdict(
    variants: Sequence[Variant], runs: Runs, metric: str, name: str, label: str | None = None
) -> str | None:
    """Who leads, and whether by more than the spread: that of the seeds, or for one seed the
    interval over sentences.
    """
    found = [
        (cell.mean, _spread(runs[variant.key], cell, metric, label) or 0.0, variant.name)
        for variant in variants
        if (cell := scored(runs[variant.key], metric, label)) is not None
    ]
    if not found:
        return None
    first, *rest = sorted(found, reverse=True)
    if not rest:
        return f"{first[2]} has {name} {first[0]:.1f}"
    second = rest[0]
    if first[0] == second[0]:
        return f"no variant leads; the highest {name} is {first[0]:.1f}"
    close = " (no more than their spread)" if first[0] - second[0] <= first[1] + second[1] else ""
    return (
        f"{first[2]} leads with {name} {first[0]:.1f}, before {second[2]} with "
        f"{second[0]:.1f}{close}"
    )
