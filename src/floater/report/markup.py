"""Build HTML.

Every text that comes from files goes through `text`, so that a name cannot become markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..runs.results import Mean, Paper
from ..runs.scores import Score

CellValue = str | int | float | Mean | Paper | Score | None
"""What a cell of a table may hold."""


def text(value: object) -> str:
    """Escape a text for HTML."""
    return html.escape(str(value), quote=True)


def attributes(**values: object) -> str:
    """Attributes of an element; those that are None are left out, `_` in a name becomes `-`."""
    given = {
        name.strip("_").replace("_", "-"): value
        for name, value in values.items()
        if value is not None
    }
    return "".join(f' {name}="{text(value)}"' for name, value in given.items())


def element(tag: str, *inner: str, **values: object) -> str:
    """An element; its content must already be HTML."""
    return f"<{tag}{attributes(**values)}>{''.join(inner)}</{tag}>"


def cell(value: CellValue) -> str:
    """The content of a table cell as HTML."""
    if value is None:
        return element("span", "–", class_="none", aria_label="not measured")
    if isinstance(value, Score):
        return f"{value.score:.2f}{_spread(value.interval)}"
    if isinstance(value, Mean):
        seeds = f" {value.seeds} seed" + ("s" if value.seeds != 1 else "")
        number = f"{value.mean:.{value.digits}f}{_spread(value.deviation, value.digits)}"
        return number + element("span", seeds, class_="seeds")
    if isinstance(value, Paper):
        return element(
            "span", f"{value.paper:g}", element("span", " paper", class_="seeds"), class_="paper"
        )
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else text(value)


def _spread(value: float | None, digits: int = 2) -> str:
    return "" if value is None else element("span", f" ± {value:.{digits}f}", class_="spread")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[CellValue]],
    *,
    title: str,
    runs: Sequence[int | None] = (),
    note: str = "",
) -> str:
    """A table that scrolls sideways if it is too wide; its first column names the rows.

    Args:
        columns: headings.
        rows: cells.
        title: caption.
        runs: number of the run that each row belongs to; a row is hidden with its run.
        note: HTML below the table.
    """
    body = list(rows)
    numeric = [all(not isinstance(row[i], str) for row in body) for i in range(len(columns))]

    def kind(column: int) -> str | None:
        return "number" if numeric[column] and column else None

    head = "".join(
        element("th", text(name), scope="col", class_=kind(i)) for i, name in enumerate(columns)
    )
    lines = ""
    for number, row in enumerate(body):
        run = runs[number] if number < len(runs) else None
        cells = [element("th", cell(row[0]), scope="row")]
        cells += [
            element("td", cell(value), class_=kind(i) or _width(value))
            for i, value in enumerate(row[1:], 1)
        ]
        lines += element("tr", *cells, data_run=run)
    content = element(
        "table",
        element("caption", text(title)),
        element("thead", element("tr", head)),
        element("tbody", lines),
    )
    return (
        element("div", content, class_="scroll", tabindex=0, role="region", aria_label=title) + note
    )


def _width(value: CellValue) -> str | None:
    """The class of a cell: short texts stay on one line, long ones may break anywhere."""
    if not isinstance(value, str) or 24 < len(value) <= 40:
        return None
    return "long" if len(value) > 40 else "short"


def details(summary: str, *inner: str, **values: object) -> str:
    """An element that opens on a click."""
    return element("details", element("summary", text(summary)), *inner, **values)


def paragraphs(lines: Iterable[str]) -> str:
    """One paragraph per line."""
    return "".join(element("p", text(line)) for line in lines)


def data(value: Any) -> str:
    """JSON that is safe inside a script element."""
    encoded = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
