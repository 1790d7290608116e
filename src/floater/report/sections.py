"""The sections of the page, as HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ..runs.results import Results
from .charts import Charts, of_results
from .load import Comparison, Run, number, whole
from .markup import Shown, details, element, table, text
from .packing import site_facts
from .summary import label, metrics_of, signed, tests_of


def reproduction(results: Results, made: Charts) -> str:
    """Tables and figures of a reproduction."""
    about = element(
        "p",
        element("span", text(results.scale), class_="badge"),
        text(f" scale · {results.item}"),
        class_="about",
    )
    tables = [
        table(
            part.columns,
            part.rows,
            title=part.title,
            note=element("p", text(part.note), class_="note") if part.note else "",
        )
        for part in results.tables
    ]
    says = "Lines with intervals where they were measured; the data is below as a table."
    figures = [made.add(figure.title, says, [of_results(figure)]) for figure in results.figures]
    return about + "".join(figures) + "".join(tables)


def scores(runs: Sequence[Run]) -> str:
    """Tables of scores, their signatures, and paired tests."""
    return "".join(_scores_on(test, runs) for test in tests_of(runs)) + _paired(runs)


def _scores_on(test: str, runs: Sequence[Run]) -> str:
    metrics = metrics_of(runs, test)
    places = [place for place, run in enumerate(runs) if test in run.scores]
    rows: list[list[Shown]] = []
    for place in places:
        found = runs[place].scores[test]
        rows.append(
            [
                runs[place].name,
                *(found.metrics.get(metric) for metric in metrics),
                found.pairs,
                found.beam,
                None if found.seconds is None else round(found.seconds),
            ]
        )
    signed = {
        (metric, runs[place].scores[test].metrics[metric].signature): None
        for metric in metrics
        for place in places
        if metric in runs[place].scores[test].metrics
    }
    lines = [
        element("li", f"{text(label(metric))} ", element("code", text(name)))
        for metric, name in signed
        if name
    ]
    note = details("Signatures", element("ul", *lines)) if lines else ""
    columns = ["run", *map(label, metrics), "sentences", "beam", "seconds"]
    kept = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    columns, rows = (
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
    )
    return table(
        columns, rows, title=f"{test}: score ± half of the 95 % interval", runs=places, note=note
    )


def _paired(runs: Sequence[Run]) -> str:
    rows: list[list[Shown]] = []
    places = []
    for place, run in enumerate(runs):
        for found in run.paired:
            by, low, high = (
                signed(value, found.measure) for value in (found.difference, found.low, found.high)
            )
            rows.append(
                [run.name, found.other, found.test, label(found.measure), by, f"{low} to {high}"]
            )
            rows[-1] += [f"{found.p_value:.3f}", found.signature]
            places.append(place)
    columns = ["run", "against", "on", "measure", "difference", "95 % interval", "p", "signature"]
    return table(columns, rows, title="Paired bootstrap tests", runs=places) if rows else ""


def comparisons(found: Sequence[Comparison]) -> str:
    """What `floater compare` found, a table a folder."""
    columns = [
        "on",
        "measure",
        "arm",
        "base",
        "arm's",
        "difference",
        "95 % interval",
        "p",
        "examples",
    ]
    tables = []
    for comparison in found:
        rows: list[list[Shown]] = []
        for row in comparison.rows:
            by, low, high = (
                signed(value, row.measure) for value in (row.difference, row.low, row.high)
            )
            rows.append(
                [row.test, label(row.measure), row.arm, row.base, row.other, by, f"{low} to {high}"]
            )
            rows[-1] += [f"{row.p_value:.3f}", row.examples]
        tables.append(
            table(columns, rows, title=f"{comparison.path.name}: both arms, medians over seeds")
        )
    note = (
        "Intervals and p-values by a paired bootstrap over examples, the same resamples for all "
        "seeds."
    )
    return element("p", text(note)) + "".join(tables)


def encodings(runs: Sequence[Run]) -> str:
    """Controls and one card for each run; the page's script draws into them."""
    views = [("values", "values"), ("similarity", "similarity p(i)·p(j)")]
    paths = [("plane", "plane of two components"), ("time", "dimensions over time")]
    orders = [("auto", "as suits"), ("speed", "by speed"), ("as-is", "as is")]
    controls = "".join(
        element(
            "label",
            f"{text(words)} ",
            element(
                "select",
                *(element("option", text(name), value=key) for key, name in choices),
                id=key_of,
            ),
            class_="choice",
        )
        for key_of, words, choices in (
            ("view", "Map", views),
            ("order", "Dimensions", orders),
            ("path", "Path", paths),
        )
    )
    longest = max(
        (len(run.positions.times) for run in runs if run.positions is not None), default=0
    )
    if longest > 2:
        slider = f'<input type="range" id="shown" min="2" max="{longest}" value="{longest}">'
        count = element("output", str(longest), id="shown-value", for_="shown")
        controls += element("label", "Encodings ", slider, count, class_="choice")
    says = (
        "Rows of a map are positions, columns dimensions; beside it the path that an encoding "
        "takes. The dashed line is the length of the longest training example: what lies below it "
        "was never seen. Arrow keys move the reading point."
    )
    ordered = sorted(enumerate(runs), key=lambda numbered: numbered[1].positions is None)
    cards = "".join(_encoding_card(place, run) for place, run in ordered)
    return (
        element("p", text(says))
        + element("div", controls, class_="controls")
        + element("div", cards, class_="cards")
    )


def _encoding_card(place: int, run: Run) -> str:
    found = run.positions
    if found is None:
        return element(
            "div",
            element("h3", text(run.name)),
            element("p", text(run.missing())),
            class_="card",
            data_run=place,
        )
    site = element(
        "select",
        *(element("option", text(name), value=i) for i, name in enumerate(found.sites)),
        id=f"site-{place}",
    )
    sites, length, dim = found.tables.shape
    words = (
        f"{found.description}; {sites} site{'s' if sites > 1 else ''}, {length} positions, {dim} "
        "dimensions"
    )
    if found.trained is not None:
        words += f", trained to {found.trained}"
    alternative = f"Heat map of the encodings of {run.name}: {words}."
    path = f"Path of the encodings of {run.name} through space."
    heading = element("figcaption", element("h3", text(run.name)), element("p", text(words)))
    columns = ["site", "|p| at the start", "mean |p|", "largest |p|", "mean step", "% in the plane"]
    return element(
        "figure",
        heading,
        element("label", "Site ", site, class_="choice"),
        element(
            "div",
            class_="map",
            id=f"map-{place}",
            data_map=place,
            tabindex=0,
            role="group",
            aria_label=alternative,
        ),
        element("div", class_="plot path", id=f"path-{place}", role="img", aria_label=path),
        element("output", class_="readout", id=f"map-{place}-readout", for_=f"map-{place}"),
        details(
            "Data", table(columns, site_facts(found), title="Every site in numbers"), class_="data"
        ),
        class_="card encoding",
        data_run=place,
    )


def cost(runs: Sequence[Run]) -> str:
    """Parameters, updates, time and speed of each run, as measured."""
    rows: list[list[Shown]] = []
    for run in runs:
        facts = run.facts
        made, planned = run.updates()
        speeds = [y for _, y in run.curves.get("tokens_per_second", [])]
        rows.append(
            [
                run.name,
                str(facts.get("positions", "")) or None,
                whole(facts.get("parameters")),
                whole(facts.get("position_parameters")),
                (
                    None
                    if made is None
                    else f"{made:,}" + (f" of {planned:,}" if planned not in (None, made) else "")
                ),
                _duration(number(facts.get("training_seconds"))),
                round(median(speeds)) if speeds else None,
                whole(facts.get("threads")),
            ]
        )
    columns = [
        "run",
        "positions",
        "parameters",
        "for positions",
        "updates",
        "training took",
        "tokens a second",
        "threads",
    ]
    note = (
        "Times are as they were on the machine of each run, whatever else it did; the speed is the "
        "median over the log."
    )
    return table(
        columns,
        rows,
        title="Parameters and cost",
        runs=range(len(runs)),
        note=element("p", note, class_="note"),
    )


def differences(runs: Sequence[Run]) -> str:
    """Settings in which the runs are not all alike."""
    flat = [dict(_flat(run.settings)) for run in runs]
    keys = list(dict.fromkeys(key for found in flat for key in found))
    rows: list[list[Shown]] = []
    for key in keys:
        values = [found.get(key) for found in flat]
        if len(set(values)) > 1:
            rows.append([key, *values])
    versions = [
        dict(run.facts.get("versions") or {}) if isinstance(run.facts.get("versions"), dict) else {}
        for run in runs
    ]
    for name in dict.fromkeys(name for found in versions for name in found):
        values = [str(found.get(name, "")) for found in versions]
        if len(set(values)) > 1:
            rows.append([f"version of {name}", *values])
    if not rows:
        return element("p", "All settings and versions are the same.")
    return table(
        ["setting", *(run.name for run in runs)],
        rows,
        title="Settings and versions that are not the same everywhere",
    )


def run(place: int, found: Run) -> str:
    """Everything that makes a run repeatable."""
    facts, data = found.facts, found.facts.get("data")
    commands = facts.get("commands") or facts.get("command") or []
    lines = [str(line) for line in commands] if isinstance(commands, list) else [str(commands)]
    rest = {
        key: value
        for key, value in facts.items()
        if key not in ("commands", "command", "versions", "data")
    }
    parts = [
        element("p", element("code", text(shlex.quote(str(found.path))))),
        (
            element("h4", "Commands") + element("pre", text("\n".join(lines)), tabindex=0)
            if lines
            else ""
        ),
        _pairs("Versions", facts.get("versions")),
        _pairs("Facts", rest),
        *(
            _pairs(f"Data: {name}", part)
            for name, part in (data.items() if isinstance(data, dict) else ())
        ),
        element("h4", "Config"),
        element("pre", text(found.config), tabindex=0, aria_label=f"Config of {found.name}"),
    ]
    return details(found.name, *parts, class_="run", data_run=place)


def _pairs(title: str, values: object) -> str:
    if not isinstance(values, dict) or not values:
        return ""
    rows = [
        [key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
        for key, value in values.items()
    ]
    return table(["", ""], rows, title=title)


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield (
                f"{above}{key}",
                value if isinstance(value, str) else json.dumps(value, default=str),
            )


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    hours, minutes = divmod(round(seconds / 60), 60)
    return (
        f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"
    )
