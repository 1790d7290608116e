"""What the page's charts are drawn from: panels of lines with intervals, as plain data, with the
same as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..runs.results import Figure
from .load import Run
from .markup import Shown, details, element, table, text
from .summary import label, metrics_of, tests_of

POINTS = 300
"""Points of a curve; longer ones are averaged."""
_CURVES = {
    "eval_bleu": ("validation BLEU", "BLEU"),
    "eval_loss": ("validation loss", "loss a token"),
    "loss": ("training loss", "smoothed loss a token"),
    "tokens_per_second": ("speed", "tokens a second"),
    "learning_rate": ("learning rate", "learning rate"),
    "grad_norm": ("gradient", "norm of the gradient"),
}


Panel = dict[str, Any]


class Charts:
    """Collects the data of charts while the page is written."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def add(self, title: str, says: str, panels: Sequence[Panel], kind: str = "lines") -> str:
        """The HTML of a chart whose panels are chosen from; its data is remembered.

        Args:
            title: heading.
            says: the text alternative.
            panels: what may be shown, one at a time.
            kind: "lines", or "dots" for one value with an interval in a row.
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
        plot = element(
            "div",
            class_="plot",
            id=name,
            data_chart=number,
            tabindex=0,
            role="group",
            aria_label=f"{title}. {says}",
        )
        readout = element("output", class_="readout", id=f"{name}-readout", for_=name)
        tables = "".join(_as_table(panel) for panel in panels)
        return element(
            "figure",
            element("figcaption", element("h3", text(title)), element("p", text(says)), choice),
            plot,
            readout,
            details("Data", tables, class_="data"),
            class_="card",
        )


def series(
    name: str,
    run: int | None,
    x: Iterable[float],
    y: Iterable[float | None],
    low: Any = None,
    high: Any = None,
) -> dict[str, Any]:
    """One line: its values, and the run that hides it."""
    return {"name": name, "run": run, "x": list(x), "y": list(y), "low": low, "high": high}


def panel(
    name: str,
    x_label: str,
    y_label: str,
    lines: Sequence[dict[str, Any]],
    names: Sequence[str] | None = None,
) -> Panel:
    """One view of a chart; `names` are those of bins, where x counts them."""
    return {
        "label": name,
        "x_label": x_label,
        "y_label": y_label,
        "names": names,
        "series": list(lines),
    }


def of_results(figure: Figure) -> Panel:
    """The panel of a reproduction's figure."""
    numbers = [value for value in figure.x if not isinstance(value, str)]
    binned = len(numbers) < len(figure.x)
    x = range(len(figure.x)) if binned else numbers
    lines = [series(line.name, None, x, line.y, line.low, line.high) for line in figure.series]
    return panel(
        figure.title,
        figure.x_label,
        figure.y_label,
        lines,
        [str(value) for value in figure.x] if binned else None,
    )


def score_panels(runs: Sequence[Run]) -> list[Panel]:
    """Scores with their intervals, one panel for each test set and metric."""
    found = []
    for test in tests_of(runs):
        for metric in metrics_of(runs, test):
            lines = []
            for number, run in enumerate(runs):
                score = run.scores[test].metrics.get(metric) if test in run.scores else None
                if score is not None:
                    spread = score.interval or 0.0
                    ends = [score.score - spread], [score.score + spread]
                    lines.append(
                        series(
                            run.name,
                            number,
                            [0],
                            [score.score],
                            *(ends if score.interval else (None, None)),
                        )
                    )
            found.append(panel(f"{label(metric)} on {test}", label(metric), "", lines))
    return found


def bin_panels(runs: Sequence[Run], test: str) -> list[Panel]:
    """Scores over source length on one test set, one panel for each metric."""
    scored = [
        (number, run.scores[test].bins) for number, run in enumerate(runs) if test in run.scores
    ]
    names = list(dict.fromkeys(name for _, bins in scored for name in bins))
    metrics = list(
        dict.fromkeys(
            metric for _, bins in scored for _, scores in bins.values() for metric in scores
        )
    )
    found = []
    for metric in metrics:
        lines = []
        for number, bins in scored:
            scores = [bins[name][1].get(metric) if name in bins else None for name in names]
            y = [None if score is None else score.score for score in scores]
            spread = [
                None if score is None or score.interval is None else score.interval
                for score in scores
            ]
            low, high = (
                [
                    None if a is None or b is None else a + sign * b
                    for a, b in zip(y, spread, strict=True)
                ]
                for sign in (-1, 1)
            )
            if any(value is not None for value in y):
                lines.append(series(runs[number].name, number, range(len(names)), y, low, high))
        found.append(panel(label(metric), "source length in tokens", label(metric), lines, names))
    return found


def training_panels(runs: Sequence[Run]) -> list[Panel]:
    """What was logged in training, the known curves first."""
    keys = list(dict.fromkeys(key for run in runs for key in run.curves))
    known = [key for key in _CURVES if key in keys]
    other = [key for key in keys if key.startswith("eval_") and key not in _CURVES]
    found = []
    for key in known[:1] + other + known[1:]:
        name, unit = _CURVES.get(
            key, (f"validation {key.removeprefix('eval_').replace('_', ' ')}",) * 2
        )
        lines = []
        for number, run in enumerate(runs):
            points = thinned(run.curves.get(key, []))
            if points:
                lines.append(
                    series(run.name, number, [x for x, _ in points], [y for _, y in points])
                )
        found.append(panel(name, "updates", unit, lines))
    return found


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points, each the mean of its neighbours."""
    size = -(-len(points) // POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), max(size, 1))]
    return [(part[-1][0], float(f"{sum(y for _, y in part) / len(part):.6g}")) for part in parts]


def _as_table(shown: Panel, most: int = 30) -> str:
    lines, names = shown["series"], shown["names"]
    if shown["y_label"] == "":
        rows: list[list[Shown]] = [
            [
                line["name"],
                line["y"][0],
                *(None if line[end] is None else line[end][0] for end in ("low", "high")),
            ]
            for line in lines
        ]
        return table(["run", shown["x_label"], "low", "high"], rows, title=shown["label"])
    places = sorted({x for line in lines for x in line["x"]})
    step = -(-len(places) // most) or 1
    values = [dict(zip(line["x"], line["y"], strict=True)) for line in lines]
    body: list[list[Shown]] = [
        [names[int(x)] if names else f"{x:,g}", *(_rounded(found.get(x)) for found in values)]
        for x in places[::-step][::-1]
    ]
    heading = shown["label"] if step == 1 else f"{shown['label']}, every {step}. point"
    return table([shown["x_label"], *(line["name"] for line in lines)], body, title=heading)


def _rounded(value: float | None) -> Shown:
    return None if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
