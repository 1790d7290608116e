"""Data of the page's charts: panels of lines with intervals, and the same numbers as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..runs.results import Figure
from ..runs.scores import Score
from .load import Run
from .markup import CellValue, details, element, table, text
from .summary import all_measures, all_test_sets, label, scored_on

MAX_POINTS = 300
"""Number of points of a curve; longer curves are averaged."""
MAX_TABLE_ROWS = 30
"""Number of rows in the table of a curve."""
_CURVES = {
    "eval_bleu": ("validation BLEU", "BLEU"),
    "eval_loss": ("validation loss", "loss per token"),
    "loss": ("training loss", "smoothed loss per token"),
    "tokens_per_second": ("speed", "tokens per second"),
    "evaluations": ("solver", "evaluations of h in a solve"),
    "learning_rate": ("learning rate", "learning rate"),
    "grad_norm": ("gradient", "norm of the gradient"),
}
"""Name and unit of the curves that every run logs."""

Panel = dict[str, Any]
"""One view of a chart, as the script of the page expects it."""
ChartLine = dict[str, Any]
"""One line of a panel."""


class Charts:
    """Collects the data of charts while the page is built."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def add(
        self, title: str, description: str, panels: Sequence[Panel], kind: str = "lines"
    ) -> str:
        """Add a chart and return its HTML.

        Args:
            title: heading.
            description: caption, also the text alternative.
            panels: views of the chart, shown one at a time.
            kind: "lines", or "dots" for rows of one value with an interval.
        """
        number = len(self.data)
        self.data.append({"kind": kind, "panels": list(panels)})
        name = f"chart-{number}"
        choice = ""
        if len(panels) > 1:
            options = "".join(
                element("option", text(panel["label"]), value=i) for i, panel in enumerate(panels)
            )
            choice = element(
                "label", "Show ", element("select", options, id=f"{name}-panel"), class_="choice"
            )
        caption = element(
            "figcaption", element("h3", text(title)), element("p", text(description)), choice
        )
        plot = element(
            "div",
            class_="plot",
            id=name,
            data_chart=number,
            tabindex=0,
            role="group",
            aria_label=f"{title}. {description}",
        )
        readout = element("output", class_="readout", id=f"{name}-readout", for_=name)
        tables = details("Data", "".join(map(_as_table, panels)), class_="data")
        return element("figure", caption, plot, readout, tables, class_="card")


def _line(
    name: str,
    run: int | None,
    x: Iterable[float],
    y: Iterable[float | None],
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
) -> ChartLine:
    """A line; it is hidden with its run, if it belongs to one."""
    return {"name": name, "run": run, "x": list(x), "y": list(y), "low": low, "high": high}


def _panel(
    name: str,
    x_label: str,
    y_label: str,
    lines: Sequence[ChartLine],
    bins: Sequence[str] | None = None,
) -> Panel:
    """A panel; if x counts bins, `bins` are their names."""
    return {
        "label": name,
        "x_label": x_label,
        "y_label": y_label,
        "names": bins,
        "series": list(lines),
    }


def results_panel(figure: Figure) -> Panel:
    """The panel of a reproduction's figure."""
    numbers = [value for value in figure.x if not isinstance(value, str)]
    binned = len(numbers) < len(figure.x)
    x = range(len(figure.x)) if binned else numbers
    lines = [_line(line.name, None, x, line.y, line.low, line.high) for line in figure.series]
    bins = [str(value) for value in figure.x] if binned else None
    return _panel(figure.title, figure.x_label, figure.y_label, lines, bins)


def score_panels(runs: Sequence[Run]) -> list[Panel]:
    """Scores with their intervals, one panel per test set and measure."""
    panels = []
    for test_set in all_test_sets(runs):
        for measure in all_measures(runs, test_set):
            lines = []
            for number, run in enumerate(runs):
                entry = run.scores.sets.get(test_set)
                score = None if entry is None else entry.scores.get(measure)
                if score is not None:
                    low, high = ([end] for end in _ends(score))
                    ends = (low, high) if score.interval else (None, None)
                    lines.append(_line(run.name, number, [0], [score.score], *ends))
            name = label(measure)
            panels.append(_panel(f"{name} on {test_set}", name, "", lines))
    return panels


def _ends(score: Score | None) -> tuple[float | None, float | None]:
    """The ends of a score's interval."""
    if score is None or score.interval is None:
        return None, None
    return score.score - score.interval, score.score + score.interval


def binned_test_sets(runs: Sequence[Run]) -> list[str]:
    """Test sets with scores by source length."""
    return [
        test_set
        for test_set in all_test_sets(runs)
        if any(run.scores.sets[test_set].bins for run in scored_on(runs, test_set))
    ]


def bin_panels(runs: Sequence[Run], test_set: str) -> list[Panel]:
    """Scores by source length on one test set, one panel per measure."""
    scored = [
        (number, run.scores.sets[test_set].bins)
        for number, run in enumerate(runs)
        if test_set in run.scores.sets
    ]
    names = list(dict.fromkeys(name for _, bins in scored for name in bins))
    measures = dict.fromkeys(
        measure for _, bins in scored for content in bins.values() for measure in content.scores
    )
    panels = []
    for measure in measures:
        lines = []
        for number, bins in scored:
            scores = [bins[name].scores.get(measure) if name in bins else None for name in names]
            y = [None if score is None else score.score for score in scores]
            low, high = ([_ends(score)[end] for score in scores] for end in (0, 1))
            if any(value is not None for value in y):
                lines.append(_line(runs[number].name, number, range(len(names)), y, low, high))
        panels.append(
            _panel(label(measure), "source length in tokens", label(measure), lines, names)
        )
    return panels


def training_panels(runs: Sequence[Run]) -> list[Panel]:
    """What was logged in training: validation BLEU, other validation scores, the rest."""
    keys = list(dict.fromkeys(key for run in runs for key in run.curves))
    common = [key for key in _CURVES if key in keys]
    other = [key for key in keys if key.startswith("eval_") and key not in _CURVES]
    panels = []
    for key in common[:1] + other + common[1:]:
        default = f"validation {key.removeprefix('eval_').replace('_', ' ')}"
        name, unit = _CURVES.get(key, (default, default))
        lines = []
        for number, run in enumerate(runs):
            points = thinned(run.curves.get(key, []))
            if points:
                x, y = zip(*points, strict=True)
                lines.append(_line(run.name, number, x, y))
        panels.append(_panel(name, "updates", unit, lines))
    return panels


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` points, each the mean of consecutive ones."""
    size = -(-len(points) // MAX_POINTS)
    chunks = [points[i : i + size] for i in range(0, len(points), max(size, 1))]
    return [
        (chunk[-1][0], float(f"{sum(y for _, y in chunk) / len(chunk):.6g}")) for chunk in chunks
    ]


def _as_table(panel: Panel) -> str:
    lines, names = panel["series"], panel["names"]
    if panel["y_label"] == "":
        rows: list[list[CellValue]] = [
            [
                line["name"],
                line["y"][0],
                *(None if line[end] is None else line[end][0] for end in ("low", "high")),
            ]
            for line in lines
        ]
        return table(["run", panel["x_label"], "low", "high"], rows, title=panel["label"])
    xs = sorted({x for line in lines for x in line["x"]})
    step = -(-len(xs) // MAX_TABLE_ROWS) or 1
    values = [dict(zip(line["x"], line["y"], strict=True)) for line in lines]
    body: list[list[CellValue]] = [
        [names[int(x)] if names else f"{x:,g}", *(_rounded(column.get(x)) for column in values)]
        for x in xs[::-step][::-1]
    ]
    title = panel["label"] if step == 1 else f"{panel['label']}, one of every {step} points"
    return table([panel["x_label"], *(line["name"] for line in lines)], body, title=title)


def _rounded(value: float | None) -> CellValue:
    return None if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
