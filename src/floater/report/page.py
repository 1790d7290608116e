"""`floater report`: one self-contained page from runs, reproductions and comparisons."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from ..files import write_text
from . import charts, packing, run_sections, score_sections
from .charts import Charts
from .load import Material, Run, gather, is_run
from .markup import data, element, paragraphs, text
from .summary import all_test_sets, sentences

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that no page may hold: control characters and halves of surrogate pairs."""
Section = tuple[str, str, str]
"""Identifier, heading and HTML of a section."""


def write_report(paths: Sequence[Path], out: Path, *, title: str = "") -> Material:
    """Read folders of runs, reproductions and comparisons, and write the page.

    Args:
        paths: the folders, or folders that contain them.
        out: the HTML file to write.
        title: heading of the page; by default it names what the page shows.

    Returns:
        What the page shows.
    """
    material = gather(paths)
    write_text(out, _CONTROL.sub("\ufffd", build(material, title)))
    return material


def build(material: Material, title: str = "") -> str:
    """The whole page.

    Its content security policy forbids the browser to load anything, and to run or apply any
    script or style but the inlined ones.
    """
    collected = Charts()
    sections = list(_sections(material, collected))
    style = _resource("page.css")
    script = "\n".join(map(_resource, ("charts.js", "maps.js", "page.js")))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri "
        "'none'; form-action 'none'"
    )
    links = (element("li", element("a", text(name), href=f"#{key}")) for key, name, _ in sections)
    return Template(_resource("page.html")).substitute(
        policy=text(policy),
        title=text(title or _title(material)),
        subtitle=text(_subtitle(material)),
        style=style,
        script=script,
        toggles=_toggles(material),
        contents="".join(links),
        sections="".join(
            element("section", element("h2", text(name)), inner, id=key)
            for key, name, inner in sections
        ),
        data=data(
            {
                "runs": [run.name for run in material.runs],
                "charts": collected.data,
                "encodings": _encodings(material),
            }
        ),
    )


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(inner: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode("ascii")


def _title(material: Material) -> str:
    if len(material.reproductions) == 1:
        folder, results = material.reproductions[0]
        own_runs = {run.resolve() for run in results.run_folders(folder) if is_run(run)}
        others = any(run.path.resolve() not in own_runs for run in material.runs)
        return f"{results.title}, and other runs" if others else results.title
    if len(material.runs) == 1 and not material.reproductions:
        return material.runs[0].name
    return "Position encodings compared"


def _subtitle(material: Material) -> str:
    counts = ((len(material.reproductions), "reproduction"), (len(material.runs), "run"))
    return " and ".join(
        f"{count} {name}" + ("s" if count > 1 else "") for count, name in counts if count
    )


def _toggles(material: Material) -> str:
    """Checkboxes that hide and show the runs."""
    boxes = (
        element(
            "label",
            f'<input type="checkbox" data-toggle="{number}" checked>',
            element("span", class_=f"key s{number % 8}"),
            element("span", text(run.name)),
            class_="chip",
        )
        for number, run in enumerate(material.runs)
    )
    return "".join(boxes)


def _encodings(material: Material) -> list[object]:
    with_encodings = sum(run.encodings is not None for run in material.runs)
    budget = packing.BUDGET // max(with_encodings, 1)
    return [
        None if run.encodings is None else packing.pack(run.encodings, budget)
        for run in material.runs
    ]


def _sections(material: Material, collected: Charts) -> Iterator[Section]:
    """The sections that have something to show."""
    runs = material.runs
    for number, (_, results) in enumerate(material.reproductions):
        if results.headline:
            inner = score_sections.headline(results, collected)
            yield f"headline-{number}", "In short", inner
    yield "summary", "Summary", _summary(material)
    for number, (_, results) in enumerate(material.reproductions):
        inner = score_sections.reproduction(results, collected)
        yield f"reproduction-{number}", results.title, inner
    if material.reproductions and sentences(runs):
        yield "runs-in-words", "The runs in words", paragraphs(sentences(runs))
    if all_test_sets(runs):
        description = "Each dot is a score; the bar is its 95 % bootstrap interval."
        chart = collected.add("Scores", description, charts.score_panels(runs), "dots")
        yield "scores", "Scores", chart + score_sections.scores(runs)
    if material.comparisons:
        inner = score_sections.comparisons(material.comparisons)
        yield "comparisons", "Comparisons", inner
    yield from _curve_sections(runs, collected)
    if runs:
        yield "encodings", "Encodings", run_sections.encodings(runs)
        yield "cost", "Parameters and cost", run_sections.cost(runs)
    if len(runs) > 1:
        yield "differences", "What differs", run_sections.differences(runs)
    if runs:
        shown = [run_sections.run(number, run) for number, run in enumerate(runs)]
        yield "runs", "Runs", "".join(shown)
    if material.notes:
        notes = element("ul", *(element("li", text(note)) for note in material.notes))
        yield "notes", "Not shown", notes


def _summary(material: Material) -> str:
    """The summaries of the reproductions; without any, that of the runs."""
    summaries = [line for _, results in material.reproductions for line in results.summary]
    lines = summaries or sentences(material.runs)
    if not lines:
        return paragraphs(["There are no scores yet."])
    return element("div", paragraphs(lines), class_="lead")


def _curve_sections(runs: Sequence[Run], collected: Charts) -> Iterator[Section]:
    description = (
        "Scores by length of the source sentence, with 95 % intervals: how well an encoding works "
        "beyond the lengths of training."
    )
    by_length = [
        collected.add(f"By length on {name}", description, charts.bin_panels(runs, name))
        for name in charts.binned_test_sets(runs)
    ]
    if by_length:
        yield "lengths", "Short to long", "".join(by_length)
    curves = charts.training_panels(runs)
    if curves:
        chart = collected.add("Training curves", "Logged values over the updates.", curves)
        yield "training", "Training", chart
