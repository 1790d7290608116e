"""Pieces of HTML.

Every text that comes from outside goes through `text`, so that a name cannot be markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..runs.results import Mean, Paper
from .load import Score

Shown = str | int | float | Mean | Paper | Score | None


def text(value: object) -> str:
    """A text as HTML."""
    return html.escape(str(value), quote=True)


def attributes(**values: object) -> str:
    """Attributes of an element; None leaves one out, and `_` in a name stands for `-`."""
    given = {
        name.strip("_").replace("_", "-"): value
        for name, value in values.items()
        if value is not None
    }
    return "".join(f' {name}="{text(value)}"' for name, value in given.items())


def element(tag: str, *inner: str, **values: object) -> str:
    """An element; what is inside must be HTML already."""
    return f"<{tag}{attributes(**values)}>{''.join(inner)}</{tag}>"


def cell(value: Shown) -> str:
    """What stands in a cell of a table."""
    if value is None:
        return element("span", "–", class_="none", aria_label="not measured")
    if isinstance(value, Score):
        spread = (
            ""
            if value.interval is None
            else element("span", f" ± {value.interval:.2f}", class_="spread")
        )
        return f"{value.score:.2f}{spread}"
    if isinstance(value, Mean):
        spread = (
            ""
            if value.deviation is None
            else element("span", f" ± {value.deviation:.2f}", class_="spread")
        )
        seeds = f"{value.seeds} seed" + ("s" if value.seeds != 1 else "")
        return f"{value.mean:.2f}{spread}" + element("span", f" {seeds}", class_="seeds")
    if isinstance(value, Paper):
        return element(
            "span", f"{value.paper:g}", element("span", " paper", class_="seeds"), class_="paper"
        )
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else text(value)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Shown]],
    *,
    title: str,
    runs: Sequence[int | None] = (),
    note: str = "",
) -> str:
    """A table that scrolls sideways where it must; its first column names the rows.

    Args:
        columns: headings.
        rows: cells.
        title: caption.
        runs: the number of the run that each row belongs to, so that it is hidden with it.
        note: HTML below the table.
    """
    found = list(rows)
    numeric = [all(not isinstance(row[i], str) for row in found) for i in range(len(columns))]

    def kind(column: int) -> str | None:
        return "number" if numeric[column] and column else None

    head = "".join(
        element("th", text(name), scope="col", class_=kind(i)) for i, name in enumerate(columns)
    )
    body = ""
    for number, row in enumerate(found):
        run = runs[number] if number < len(runs) else None
        cells = [element("th", cell(row[0]), scope="row")]
        cells += [
            element("td", cell(value), class_=kind(i) or _long(value))
            for i, value in enumerate(row[1:], 1)
        ]
        body += element("tr", *cells, data_run=run)
    made = element(
        "table",
        element("caption", text(title)),
        element("thead", element("tr", head)),
        element("tbody", body),
    )
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=title) + note


def _long(value: Shown) -> str | None:
    """Short texts stay on one line, long ones are broken anywhere."""
    if not isinstance(value, str) or 24 < len(value) <= 40:
        return None
    return "long" if len(value) > 40 else "short"


def details(summary: str, *inner: str, **values: object) -> str:
    """Something to open."""
    return element("details", element("summary", text(summary)), *inner, **values)


def paragraphs(lines: Iterable[str], lead: str = "") -> str:
    """One paragraph a line; the first one starts with `lead`, in bold."""
    return "".join(
        element("p", element("b", text(lead)) if lead and not i else "", text(line))
        for i, line in enumerate(lines)
    )


def data(value: Any) -> str:
    """JSON that may stand inside a script element."""
    found = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return found.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
