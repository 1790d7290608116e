"""Rebuild the comparison tables of docs/results.md from docs/records, and draw its loss curves.

    python tools/results.py [--check]

Each table is between `<!-- NAME -->` and `<!-- /NAME -->`. It is built from
docs/records/NAME/results.json, a copy of what `floater reproduce` wrote (`<!-- NAME.1.3 -->` takes
its first and third table only), or from all files docs/records/NAME/*.json: copies of the
comparison.json files of `floater compare` or `floater reproduce`, each named after its config. The
curves (docs/figures/masked-lm.png) are those of docs/records/mlm; the README's figure
(docs/figures/any-length.png) takes its lines from several reproductions. With --check nothing is
written, and the exit code is 1 if a table differs.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from floater.files import write_text
from floater.report.figures import draw_lines, grid, save
from floater.runs.comparison import Comparison
from floater.runs.folder import RunFolder
from floater.runs.results import RESULTS, Cell, Figure, Mean, Paper, Results
from floater.tasks.understanding.comparison_tables import markdown

ROOT = Path(__file__).parents[1]
ORDER = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
"""Order of the paper's Table 3; other configs follow by name."""
CURVES = {
    "RoBERTa of 6 layers (granite), WikiText": ("granite-head", "granite-start", "granite-floater"),
    "rxnfp, reactions": ("rxnfp-base", "rxnfp-start", "rxnfp-floater"),
}
"""Masked language models: the runs of the base, of p(start) alone and of the dynamics."""

OVERVIEW: dict[str, dict[str, tuple[str, ...]]] = {
    "Lists of numbers, dates and times, trained on fewer than 40 tokens": {
        "lengths": (
            "rotating flow, stretched",
            "sinusoidal, stretched",
            "recurrent",
            "sinusoidal",
            "rotary",
        ),
    },
    "Debian package descriptions, trained on fewer than 48 tokens": {
        "s2l-12000": ("rotary + flow, q, k, v", "rotary + flow, half stretched", "rotary"),
    },
}
"""The README's figure: the lines of each panel, by their reproduction."""
FLOW_COLOURS, OTHER_COLOURS = ("#d1495b", "#edae49"), ("#00798c", "#30638e", "#7a8b99", "#a9b4bd")

Curves = dict[str, dict[str, list[tuple[int, float]]]]


def filled(page: str, records: Path) -> str:
    """Rebuild all tables of a page.

    Args:
        page: Markdown with table markers.
        records: folder with a folder of comparisons for each marker.
    """

    def table(marker: str) -> str:
        name, *numbers = marker.split(".")
        if (records / name / RESULTS).is_file():
            return reproduced(Results.read(records / name), [int(number) for number in numbers])
        comparisons = [
            Comparison.from_file(path).model_copy(update={"name": path.stem})
            for path in sorted((records / name).glob("*.json"))
        ]
        if not comparisons:
            print(
                f"results.py: {records / name} has no comparison, but the page has a table "
                f"`{name}`.",
                file=sys.stderr,
            )
            sys.exit(2)
        comparisons.sort(key=lambda comparison: _rank(comparison.name))
        return markdown(comparisons)

    return with_tables(page, table)


def reproduced(results: Results, numbers: Sequence[int] = ()) -> str:
    """Return the tables of a reproduction, with their notes and its summary.

    Args:
        results: what `floater reproduce` wrote.
        numbers: which tables, counted from 1, without the summary; default: all.
    """
    parts = []
    shown = [results.tables[number - 1] for number in numbers] or results.tables
    for table in shown:
        rows = [[_text(cell) for cell in row] for row in table.rows]
        text = markdown_table(table.columns, rows)
        note = textwrap.fill(f"{table.title}. {table.note}", 100, break_on_hyphens=False)
        parts.append(f"{note}\n\n{text}")
    summary = [] if numbers else results.summary
    parts += [textwrap.fill(line, 100, break_on_hyphens=False) + "\n" for line in summary]
    return "\n".join(parts)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: Cell) -> str:
    if isinstance(cell, Mean):
        spread = "" if cell.deviation is None else f" ± {cell.deviation:.{cell.digits}f}"
        return f"{cell.mean:.{cell.digits}f}{spread}"
    if isinstance(cell, Paper):
        return f"{cell.paper:g} (paper)"
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)


def with_tables(page: str, table: Callable[[str], str]) -> str:
    """Replace what is between the markers of a page.

    Args:
        page: Markdown with table markers.
        table: the text for the name of a marker; complete lines, or nothing.
    """

    def block(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]} -->\n{table(mark[1])}<!-- /{mark[1]} -->"

    return re.sub(r"<!-- ([a-z0-9.-]+) -->\n.*?<!-- /\1 -->", block, page, flags=re.DOTALL)


def check_or_write(path: Path, rebuilt: str, check: bool, advice: str) -> None:
    """Write a page, or exit with code 1 if that would change it.

    Args:
        path: the page.
        rebuilt: its new text.
        check: write nothing.
        advice: what a line says of a page that differs.
    """
    if not check:
        write_text(path, rebuilt)
    elif rebuilt != path.read_text(encoding="utf-8"):
        print(f"docs/{path.name} {advice}", file=sys.stderr)
        sys.exit(1)


def _rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def curves(records: Path) -> Curves:
    """Read the held-out losses by update, for each model and each trained variant.

    Args:
        records: folder of the runs in CURVES.

    Returns:
        Points (update, loss) by title and label; update 0 is the base.
    """
    panels: Curves = {}
    for title, (base, *trained) in CURVES.items():
        scores = RunFolder(records / base).scores().sets["valid"].scores
        first = (0, scores["loss"].score)
        panels[title] = {}
        for label, run in zip(("p(start) alone", "dynamics"), trained, strict=True):
            rows = [row for row in RunFolder(records / run).metrics() if "eval_loss" in row]
            panels[title][label] = [first, *((row["step"], row["eval_loss"]) for row in rows)]
    return panels


def draw(panels: Curves, path: Path) -> None:
    """Draw the curves, one panel per model, with the base as a horizontal line."""
    figure, axes = grid(len(panels))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for mark, (label, points) in zip("so", lines.items(), strict=True):
            axis.plot(*zip(*points, strict=True), marker=mark, markersize=5, label=label)
            base = points[0][1]
        axis.axhline(base, color="0.5", linewidth=1, linestyle="--", label="base")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("updates", fontsize=9)
        axis.set_ylabel("held-out loss per masked token (nats)", fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save(figure, path)


def overview(records: Path) -> list[Figure]:
    """Collect the lines of the README's figure, one figure of results per panel."""
    panels = []
    for title, sources in OVERVIEW.items():
        found = {name: Results.read(records / name).figures[0] for name in sources}
        series = [
            next(line for line in found[name].series if line.name == wanted)
            for name, lines in sources.items()
            for wanted in lines
        ]
        first = next(iter(found.values()))
        panels.append(first.model_copy(update={"title": title, "series": series}))
    return panels


def draw_overview(panels: Sequence[Figure], path: Path) -> None:
    """Draw the README's figure: flows in warm colours, other encoders in cold ones."""
    figure, axes = grid(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        styles: dict[str, dict[str, Any]] = {}
        flows, others = iter(FLOW_COLOURS), iter(OTHER_COLOURS)
        for line in panel.series:
            flow = "flow" in line.name
            colour = next(flows if flow else others)
            styles[line.name] = {"color": colour, "linewidth": 2.5 if flow else 1.5}
        draw_lines(axis, panel, styles)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=9)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    path = ROOT / "docs" / "results.md"
    rebuilt = filled(path.read_text(encoding="utf-8"), ROOT / "docs" / "records")
    advice = "does not match docs/records; run python tools/results.py."
    check_or_write(path, rebuilt, arguments.check, advice)
    if not arguments.check:
        records, figures = ROOT / "docs" / "records", ROOT / "docs" / "figures"
        draw(curves(records / "mlm"), figures / "masked-lm.png")
        draw_overview(overview(records), figures / "any-length.png")


if __name__ == "__main__":
    main()
