"""`floater report`: one self-contained page from run folders and reproductions."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from ..files import write_text
from ..runs.results import Results
from . import charts, packing, sections
from .charts import Charts
from .load import Material, gather
from .markup import data, element, paragraphs, text
from .summary import sentences, tests_of


def write_report(paths: Sequence[Path], out: Path, *, title: str = "") -> Material:
    """Read folders of runs and reproductions, and write the page; returns what it shows."""
    material = gather(paths)
    write_text(out, _printable(build(material, title)))
    return material


def _printable(page: str) -> str:
    """The page without what no page may hold: halves of surrogate pairs, and control characters."""
    return _CONTROL.sub("\ufffd", page)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def build(material: Material, title: str = "") -> str:
    """The whole page.

    The browser is told to load nothing, and to run and style nothing but what is inlined here.
    """
    made = Charts()
    body = list(_sections(material, made))
    encodings = _encodings(material)
    style, script = (
        _inlined("page.css"),
        "\n".join(_inlined(name) for name in ("charts.js", "maps.js", "page.js")),
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri "
        "'none'; form-action 'none'"
    )
    return Template(_inlined("page.html")).substitute(
        policy=text(policy),
        title=text(title or _title(material)),
        subtitle=text(_subtitle(material)),
        style=style,
        script=script,
        toggles=_toggles(material),
        contents="".join(
            element("li", element("a", text(name), href=f"#{key}")) for key, name, _ in body
        ),
        sections="".join(
            element("section", element("h2", text(name)), inner, id=key)
            for key, name, inner in body
        ),
        data=data(
            {
                "runs": [run.name for run in material.runs],
                "charts": made.data,
                "encodings": encodings,
            }
        ),
    )


def _inlined(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(inner: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode("ascii")


def _title(material: Material) -> str:
    if len(material.reproductions) == 1:
        folder, results = material.reproductions[0]
        own = {inner.resolve() for inner in results.run_folders(folder)}
        others = any(run.path.resolve() not in own for run in material.runs)
        return f"{results.title}, and other runs" if others else results.title
    return (
        material.runs[0].name
        if len(material.runs) == 1 and not material.reproductions
        else "Position encodings compared"
    )


def _subtitle(material: Material) -> str:
    counts = ((len(material.reproductions), "reproduction"), (len(material.runs), "run"))
    return " and ".join(
        f"{count} {name}" + ("s" if count > 1 else "") for count, name in counts if count
    )


def _toggles(material: Material) -> str:
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
    having = [run for run in material.runs if run.positions is not None]
    share = packing.BUDGET // max(len(having), 1)
    return [
        None if run.positions is None else packing.pack(run.positions, share)
        for run in material.runs
    ]


def _led(material: Material) -> Iterator[tuple[str, Results]]:
    """Reproductions with what goes before their summaries: their titles, where there are
    several.
    """
    for _, results in material.reproductions:
        yield f"{results.title}: " if len(material.reproductions) > 1 else "", results


def _sections(material: Material, made: Charts) -> Iterator[tuple[str, str, str]]:
    """Key, heading and HTML of each section that has something to show."""
    runs = material.runs
    words = [
        line for _, results in material.reproductions for line in results.summary
    ] or sentences(runs)
    yield (
        "summary",
        "Summary",
        (
            element("div", paragraphs(words), class_="lead")
            if words
            else paragraphs(["Nothing was scored yet."])
        ),
    )
    for number, (_, results) in enumerate(material.reproductions):
        yield f"reproduction-{number}", results.title, sections.reproduction(results, made)
    if material.reproductions and sentences(runs):
        yield "runs-in-words", "The runs in words", paragraphs(sentences(runs))
    if tests_of(runs):
        says = "Each dot is a score, the bar its 95 % bootstrap interval."
        yield (
            "scores",
            "Scores",
            made.add("Scores", says, charts.score_panels(runs), "dots") + sections.scores(runs),
        )
    if material.comparisons:
        yield "comparisons", "Comparisons", sections.comparisons(material.comparisons)
    binned = [
        test
        for test in tests_of(runs)
        if any(run.scores[test].bins for run in runs if test in run.scores)
    ]
    if binned:
        says = (
            "Scores by length of the source sentence, with 95 % intervals: how an encoding holds "
            "beyond the lengths it saw."
        )
        parts = [
            made.add(f"By length on {test}", says, charts.bin_panels(runs, test)) for test in binned
        ]
        yield "lengths", "Short to long", "".join(parts)
    curves = charts.training_panels(runs)
    if curves:
        yield (
            "training",
            "Training",
            made.add("Training curves", "What was logged, over the updates.", curves),
        )
    if runs:
        yield "encodings", "Encodings", sections.encodings(runs)
        yield "cost", "Parameters and cost", sections.cost(runs)
    if len(runs) > 1:
        yield "differences", "What differs", sections.differences(runs)
    if runs:
        yield "runs", "Runs", "".join(sections.run(number, run) for number, run in enumerate(runs))
    if material.notes:
        yield (
            "notes",
            "Not shown",
            element("ul", *(element("li", text(note)) for note in material.notes)),
        )
