"""Sections of the page about the runs: encodings, cost, settings and everything recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ..runs.encodings import Encodings
from .load import Run, integer, number
from .markup import CellValue, details, element, table, text
from .packing import site_statistics

_ENCODINGS_NOTE = (
    "Each row of a map is a position, each column a dimension; the plot below it is the path of "
    "the encoding. The dashed line marks the length of the longest training example: positions "
    "below it did not occur in training. The arrow keys move the cell whose value is shown."
)
_CHOICES = (
    ("view", "Map", (("values", "values"), ("similarity", "similarity p(i)·p(j)"))),
    (
        "order",
        "Dimensions",
        (("auto", "automatic order"), ("speed", "by speed"), ("as-is", "original order")),
    ),
    (
        "path",
        "Path",
        (("plane", "two principal components"), ("time", "dimensions over time")),
    ),
)
"""Controls of the encodings: key, label, and the options with their labels."""


def encodings(runs: Sequence[Run]) -> str:
    """Controls and one card per run; the page's script draws into the cards."""
    controls = "".join(
        element("label", f"{text(name)} ", _select(key, options), class_="choice")
        for key, name, options in _CHOICES
    )
    longest = max((len(run.encodings.times) for run in runs if run.encodings), default=0)
    if longest > 2:
        slider = f'<input type="range" id="shown" min="2" max="{longest}" value="{longest}">'
        count = element("output", str(longest), id="shown-value", for_="shown")
        controls += element("label", "Positions ", slider, count, class_="choice")
    with_encodings_first = sorted(enumerate(runs), key=lambda item: item[1].encodings is None)
    cards = "".join(_card(number, run) for number, run in with_encodings_first)
    return (
        element("p", text(_ENCODINGS_NOTE))
        + element("div", controls, class_="controls")
        + element("div", cards, class_="cards")
    )


def _select(name: str, options: Sequence[tuple[object, str]]) -> str:
    inner = (element("option", text(shown), value=value) for value, shown in options)
    return element("select", *inner, id=name)


def _card(number: int, run: Run) -> str:
    name = element("h3", text(run.name))
    if run.encodings is None:
        reason = element("p", text(run.why_no_encodings()))
        return element("div", name, reason, class_="card", data_run=number)
    description = _describe(run.encodings)
    heat_map = element(
        "div",
        class_="map",
        id=f"map-{number}",
        data_map=number,
        tabindex=0,
        role="group",
        aria_label=f"Heat map of the encodings of {run.name}: {description}.",
    )
    path = element(
        "div",
        class_="plot path",
        id=f"path-{number}",
        role="img",
        aria_label=f"Path of the encodings of {run.name} through space.",
    )
    columns = ["site", "|p| at the start", "mean |p|", "largest |p|", "mean step", "% in the plane"]
    statistics = table(columns, site_statistics(run.encodings), title="Statistics of every site")
    site = _select(f"site-{number}", list(enumerate(run.encodings.sites)))
    return element(
        "figure",
        element("figcaption", name, element("p", text(description))),
        element("label", "Site ", site, class_="choice"),
        heat_map,
        path,
        element("output", class_="readout", id=f"map-{number}-readout", for_=f"map-{number}"),
        details("Data", statistics, class_="data"),
        class_="card encoding",
        data_run=number,
    )


def _describe(encodings: Encodings) -> str:
    sites, length, dim = encodings.tables.shape
    description = (
        f"{encodings.description}; {sites} site{'s' if sites > 1 else ''}, {length} positions, "
        f"{dim} dimensions"
    )
    if encodings.trained is not None:
        description += f", trained to {encodings.trained}"
    return description


def cost(runs: Sequence[Run]) -> str:
    """Parameters, updates, time and speed of each run."""
    rows: list[list[CellValue]] = []
    for run in runs:
        facts = run.facts
        speeds = [y for _, y in run.curves.get("tokens_per_second", [])]
        rows.append(
            [
                run.name,
                str(facts.get("positions", "")) or None,
                integer(facts.get("parameters")),
                integer(facts.get("position_parameters")),
                _updates(run),
                _duration(number(facts.get("training_seconds"))),
                round(median(speeds)) if speeds else None,
                integer(facts.get("threads")),
            ]
        )
    columns = [
        "run",
        "positions",
        "parameters",
        "for positions",
        "updates",
        "training time",
        "tokens per second",
        "threads",
    ]
    note = (
        "Times were measured on the machine of each run, with whatever else it was doing; the "
        "speed is the median over the log."
    )
    return table(
        columns,
        rows,
        title="Parameters and cost",
        runs=range(len(runs)),
        note=element("p", note, class_="note"),
    )


def _updates(run: Run) -> str | None:
    completed, planned = run.updates()
    if completed is None:
        return None
    return f"{completed:,}" + (f" of {planned:,}" if planned not in (None, completed) else "")


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def differences(runs: Sequence[Run]) -> str:
    """Settings and versions that differ between the runs."""
    settings = [dict(_flat(run.settings)) for run in runs]
    versions = [_versions(run) for run in runs]
    rows: list[list[CellValue]] = []
    for key in dict.fromkeys(key for entry in settings for key in entry):
        values = [entry.get(key) for entry in settings]
        if len(set(values)) > 1:
            rows.append([key, *values])
    for name in dict.fromkeys(name for entry in versions for name in entry):
        texts = [str(entry.get(name, "")) for entry in versions]
        if len(set(texts)) > 1:
            rows.append([f"version of {name}", *texts])
    if not rows:
        return element("p", "All settings and versions are the same.")
    columns = ["setting", *(run.name for run in runs)]
    return table(columns, rows, title="Settings and versions that differ")


def _versions(run: Run) -> dict[str, Any]:
    versions = run.facts.get("versions")
    return versions if isinstance(versions, dict) else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted keys with texts."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{key}", shown


def run(number: int, shown: Run) -> str:
    """Everything that is needed to repeat a run."""
    facts, data = shown.facts, shown.facts.get("data")
    commands = facts.get("commands") or facts.get("command") or []
    lines = [str(line) for line in commands] if isinstance(commands, list) else [str(commands)]
    other_facts = {
        key: value
        for key, value in facts.items()
        if key not in ("commands", "command", "versions", "data")
    }
    inner = [element("p", element("code", text(shlex.quote(str(shown.path)))))]
    if lines:
        inner.append(element("h4", "Commands"))
        inner.append(element("pre", text("\n".join(lines)), tabindex=0))
    inner.append(_key_value_table("Versions", facts.get("versions")))
    inner.append(_key_value_table("Facts", other_facts))
    for split, fingerprint in data.items() if isinstance(data, dict) else ():
        inner.append(_key_value_table(f"Data: {split}", fingerprint))
    config = element("pre", text(shown.config), tabindex=0, aria_label=f"Config of {shown.name}")
    return details(
        shown.name, *inner, element("h4", "Config"), config, class_="run", data_run=number
    )


def _key_value_table(title: str, values: object) -> str:
    if not isinstance(values, dict) or not values:
        return ""
    rows = [
        [key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
        for key, value in values.items()
    ]
    return table(["", ""], rows, title=title)
