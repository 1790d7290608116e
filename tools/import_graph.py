"""Draw the import graph of the package into docs/architecture.md and docs/figures/imports.svg.

    python tools/import_graph.py [--check]

The graph is read from the source; nothing is imported. With --check nothing is written, and a page
that does not match the code ends with exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

from floater.files import write_text

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "floater"
PAGE = ROOT / "docs" / "architecture.md"
FIGURE = ROOT / "docs" / "figures" / "imports.svg"
ORDER = [
    *("times", "ode", "dynamics", "encoders", "attachments", "runs", "training", "tasks"),
    *("report", "experiments", "cli"),
]
"""Packages and modules with a meaning of their own; what all of them use is left out."""


def imports(room: str) -> set[str]:
    """The packages that a package imports from, wherever in its files."""
    single = SOURCE / f"{room}.py"
    paths = [single] if single.is_file() else sorted((SOURCE / room).rglob("*.py"))
    names = set()
    for path in paths:
        parts = ("floater", *path.relative_to(SOURCE).parts[:-1])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = parts[: len(parts) - node.level + 1]
                module = (*package, *(node.module.split(".") if node.module else ()))
                for alias in node.names:
                    names.add((*module, alias.name)[1])
    return {name for name in names if name in ORDER and name != room}


def graph() -> dict[str, list[str]]:
    """What each package imports, in the order of the layers."""
    return {room: sorted(imports(room), key=ORDER.index) for room in ORDER}


def reduced(edges: dict[str, list[str]]) -> dict[str, list[str]]:
    """The graph without arrows that follow from others."""

    def reach(room: str) -> set[str]:
        return {room}.union(*(reach(other) for other in edges[room]))

    return {
        room: [
            other
            for other in others
            if not any(other in reach(third) for third in others if third != other)
        ]
        for room, others in edges.items()
    }


def table(edges: dict[str, list[str]]) -> str:
    """The graph as a Markdown list."""
    lines = [f"- `{room}` imports {_listed(others)}" for room, others in edges.items()]
    return "\n".join(lines)


def _listed(rooms: list[str]) -> str:
    return ", ".join(f"`{room}`" for room in rooms) or "none of the others"


def filled(page: str, edges: dict[str, list[str]]) -> str:
    """The page with its list replaced."""
    block = f"<!-- imports -->\n{table(edges)}\n<!-- /imports -->"
    return re.sub(r"<!-- imports -->.*?<!-- /imports -->", lambda _: block, page, flags=re.DOTALL)


def draw(edges: dict[str, list[str]], path: Path) -> None:
    """Draw the reduced graph: layers from left to right, an arrow to what a package imports."""
    import matplotlib as mpl  # noqa: PLC0415  (not needed for --check)
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "floater"
    spots = positions(edges)
    figure = Figure(figsize=(14, 1.8))
    axis = figure.subplots()
    box = {"boxstyle": "round,pad=0.45", "facecolor": "#e8eef7", "edgecolor": "#4a6fa5"}
    boxes = {
        room: axis.text(*spot, room, ha="center", va="center", fontsize=11, bbox=box)
        for room, spot in spots.items()
    }
    for room, others in reduced(edges).items():
        for other in others:
            arrow = {"arrowstyle": "->", "color": "0.3", "shrinkA": 0, "shrinkB": 0}
            ends = {
                "patchA": boxes[room].get_bbox_patch(),
                "patchB": boxes[other].get_bbox_patch(),
            }
            axis.annotate("", spots[other], spots[room], arrowprops={**arrow, **ends})
    axis.set_xlim(-0.6, max(x for x, _ in spots.values()) + 0.6)
    axis.set_ylim(-1.5, 0.5)
    axis.axis("off")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def positions(edges: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """The longest chain of imports on one line, the rest below it, left of their first user."""
    level: dict[str, int] = {}
    for room in ORDER:
        level[room] = 1 + max((level[other] for other in edges[room]), default=-1)
    chain = [max(ORDER, key=lambda room: level[room])]
    while level[chain[-1]]:
        chain.append(next(r for r in edges[chain[-1]] if level[r] == level[chain[-1]] - 1))
    spots: dict[str, tuple[float, float]] = {}
    for room in ORDER:
        users = [level[other] for other in chain if room in edges[other]]
        spots[room] = (level[room], 0.0) if room in chain else (min(users) - 1.0, -1.0)
    return spots


def main() -> None:
    """Write the page and the figure, or check the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    expected = filled(page, graph())
    if arguments.check:
        if expected != page:
            print(
                "docs/architecture.md does not show the imports of the code; run python "
                "tools/import_graph.py.",
                file=sys.stderr,
            )
            sys.exit(1)
        return
    write_text(PAGE, expected)
    draw(graph(), FIGURE)


if __name__ == "__main__":
    main()
