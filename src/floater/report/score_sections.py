"""Sections of the page about what was measured: reproductions, scores and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..runs.comparison import Comparison
from ..runs.results import Figure, Results
from ..runs.scores import Difference
from .charts import Charts, results_panel
from .load import Run, integer
from .markup import CellValue, details, element, paragraphs, table, text
from .summary import all_measures, all_test_sets, label, signed, unit


def reproduction(results: Results, charts: Charts) -> str:
    """Tables and figures of a reproduction."""
    scale = element(
        "p",
        element("span", text(results.scale), class_="badge"),
        text(f" scale · {results.item}"),
        class_="about",
    )
    tables = [
        table(
            shown.columns,
            shown.rows,
            title=shown.title,
            note=element("p", text(shown.note), class_="note") if shown.note else "",
        )
        for shown in results.tables
    ]
    # a headline shows the first one
    shown_figures = results.figures[1:] if results.headline else results.figures
    figures = [_figure(figure, charts) for figure in shown_figures]
    return scale + "".join(figures) + "".join(tables)


def headline(results: Results, charts: Charts) -> str:
    """What a reader should remember, beside the first figure."""
    words = element("div", paragraphs(results.headline), class_="lead")
    return element(
        "div", words, *(_figure(figure, charts) for figure in results.figures[:1]), class_="beside"
    )


def _figure(figure: Figure, charts: Charts) -> str:
    caption = "Lines with intervals, where they were measured; the data is below as a table."
    return charts.add(figure.title, caption, [results_panel(figure)])


def scores(runs: Sequence[Run]) -> str:
    """Tables of scores with their signatures, and paired tests."""
    return "".join(_scores_on(name, runs) for name in all_test_sets(runs)) + _paired_tests(runs)


def _scores_on(test_set: str, runs: Sequence[Run]) -> str:
    measures = all_measures(runs, test_set)
    numbers = [number for number, run in enumerate(runs) if test_set in run.scores.sets]
    scored = [runs[number] for number in numbers]
    rows: list[list[CellValue]] = []
    for run in scored:
        entry = run.scores.sets[test_set]
        rows.append(
            [
                run.name,
                *(entry.scores.get(measure) for measure in measures),
                entry.examples,
                integer(entry.settings.get("beam")),
                None if entry.seconds is None else round(entry.seconds),
            ]
        )
    columns = ["run", *map(label, measures), unit(scored), "beam", "seconds"]
    used = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return table(
        [columns[i] for i in used],
        [[row[i] for i in used] for row in rows],
        title=f"{test_set}: score ± half of the 95 % interval",
        runs=numbers,
        note=_signatures(test_set, scored, measures),
    )


def _signatures(test_set: str, runs: Sequence[Run], measures: Sequence[str]) -> str:
    """The distinct signatures of each measure."""
    scores = [run.scores.sets[test_set].scores for run in runs]
    signatures = {
        (measure, entry[measure].signature): None
        for measure in measures
        for entry in scores
        if measure in entry and entry[measure].signature
    }
    lines = [
        element("li", f"{text(label(measure))} ", element("code", text(signature)))
        for measure, signature in signatures
    ]
    return details("Signatures", element("ul", *lines)) if lines else ""


def _paired_tests(runs: Sequence[Run]) -> str:
    rows: list[list[CellValue]] = []
    numbers = []
    for number, run in enumerate(runs):
        for test in run.scores.paired:
            names = [run.name, test.against, test.test_set, label(test.measure)]
            rows.append([*names, *_difference(test, test.measure), test.signature])
            numbers.append(number)
    columns = ["run", "against", "on", "measure", "difference", "95 % interval", "p", "signature"]
    return table(columns, rows, title="Paired bootstrap tests", runs=numbers) if rows else ""


def _difference(test: Difference, measure: str) -> list[str]:
    """The difference, its interval and its p-value, as text."""
    difference, low, high = (
        signed(value, measure) for value in (test.difference, test.low, test.high)
    )
    return [difference, f"{low} to {high}", f"{test.p_value:.3f}"]


def comparisons(entries: Sequence[tuple[Path, Comparison]]) -> str:
    """What `floater compare` measured, one table per folder."""
    tables = []
    for path, comparison in entries:
        rows: list[list[CellValue]] = [
            [
                row.test_set,
                label(row.measure),
                row.variant,
                row.base,
                row.other,
                *_difference(row, row.measure),
                row.examples,
            ]
            for row in comparison.rows
        ]
        title = f"{path.name}: variants against {comparison.base}, medians over seeds"
        tables.append(table(_COMPARISON_COLUMNS, rows, title=title))
    note = (
        "Intervals and p-values come from a paired bootstrap over examples, with the same "
        "resamples for all seeds."
    )
    return element("p", text(note)) + "".join(tables)


_COMPARISON_COLUMNS = (
    "on",
    "measure",
    "variant",
    "base score",
    "variant score",
    "difference",
    "95 % interval",
    "p",
    "examples",
)
