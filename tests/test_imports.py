"""Imports go in one direction, as docs/architecture.md describes; nothing is imported here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import import_graph

SOURCE = Path(__file__).parents[1] / "src" / "floater"
ORDER = [
    *("lazy", "stopping", "errors", "printing", "room", "files", "config", "recipes"),
    *("times", "ode", "dynamics", "encoders", "attachments", "runs"),
    *("training", "tasks", "report", "experiments"),
    *("cli_errors", "cli_options", "cli", "__main__"),
]
WITHOUT_TORCH = {"runs", "report"}
"""Rooms that read runs on machines without torch."""
TORCH_PACKAGES = {"torch", "transformers", "accelerate", "datasets", "tokenizers"}
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def parts(path: Path) -> tuple[str, ...]:
    """("floater", "ode", "path") for ode/path.py, ("floater", "ode") for its __init__."""
    names = ("floater", *path.relative_to(SOURCE).with_suffix("").parts)
    return names[:-1] if names[-1] == "__init__" else names


def imported(path: Path, text: str | None = None) -> Iterator[tuple[str, ...]]:
    """Every module or name that a file imports, wherever in the file, as an absolute path."""
    here = (
        parts(path) if path.name == "__init__.py" else parts(path)[:-1]
    )  # the package that `.` stands for
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if text is None else text)):
        if isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, name.name) for name in node.names)


def rooms(path: Path, text: str | None = None) -> set[str]:
    """The rooms of the package that a file imports from; "" is the package's own __init__."""
    ours = (names for names in imported(path, text) if names[0] == "floater")
    known = {parts(module)[1] for module in MODULES}
    return {names[1] if len(names) > 1 and names[1] in known else "" for names in ours}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(parts(path)))
def test_imports_flow_one_way(path: Path) -> None:
    room = parts(path)[1]
    assert room in ORDER, f"say in ORDER and in docs/architecture.md where {room} stands"
    seen = rooms(path)
    assert "" not in seen, "a room imports from other rooms, never from floater/__init__.py"
    later = sorted(other for other in seen if ORDER.index(other) > ORDER.index(room))
    assert not later, f"{room} stands before {', '.join(later)}"


def imported_modules(path: Path, text: str | None = None) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, wherever in the file."""
    modules = {parts(module) for module in MODULES}
    found: set[tuple[str, ...]] = set()
    for names in imported(path, text):
        package = names[:-1]
        inside = parts(path)[: len(package)] == package
        if names in modules:
            found.add(names)
        # Importing a module from a package also runs the package; for its own files it runs anyway.
        if package in modules and not (names in modules and inside):
            found.add(package)
    return found


def cycles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        todo, seen = [start], set[str]()
        while todo:
            new = edges[todo.pop()] - seen
            seen |= new
            todo += new
        reached[start] = seen
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in edges
        if module in reached[module]
    }


def test_no_files_import_each_other() -> None:
    """Imports in functions and under TYPE_CHECKING count, too."""
    edges = {
        ".".join(parts(path)[1:]): {".".join(names[1:]) for names in imported_modules(path)}
        for path in MODULES
    }
    assert not cycles(edges)


def test_cycles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set(), "f": {"f"}}
    assert cycles(edges) == {frozenset("abc"), frozenset("f")}


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from .sites import Sites", "attachments.sites"),
        ("from . import sites", "attachments.sites"),
        ("def f():\n    from .sites import Sites", "attachments.sites"),
        ("if TYPE_CHECKING:\n    from .sites import Sites", "attachments.sites"),
        ("import floater.attachments.sites", "attachments.sites"),
        ("from ..attachments import Sites", "attachments"),
        ("from ..encoders import FlowConfig", "encoders"),
    ],
)
def test_every_way_to_import_a_module_counts(line: str, module: str) -> None:
    path = SOURCE / "attachments" / "attachment.py"
    assert {".".join(names[1:]) for names in imported_modules(path, line)} == {module}


def test_only_encoders_call_the_solver() -> None:
    """The dynamics know the solver's fields, which they offer it as a faster way."""
    users = {parts(path)[1] for path in MODULES if "ode" in rooms(path)}
    assert users <= {"ode", "dynamics", "encoders"}


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if parts(path)[1] in WITHOUT_TORCH],
    ids=lambda path: ".".join(parts(path)),
)
def test_runs_and_reports_are_read_without_torch(path: Path) -> None:
    assert not TORCH_PACKAGES & {names[0] for names in imported(path)}


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_runs_and_reports_need_no_room_that_needs_torch(room: str) -> None:
    """Directly or by way of other rooms."""
    needed, waiting = {room}, [room]
    while waiting:
        current = waiting.pop()
        others = {
            other for path in MODULES if parts(path)[1] == current for other in rooms(path)
        } - needed
        needed |= others
        waiting += others
    with_torch = {
        parts(path)[1]
        for path in MODULES
        if TORCH_PACKAGES & {names[0] for names in imported(path)}
    }
    assert not needed & with_torch
    assert not needed & {"training", "tasks"}


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("from ..ode import solve", "ode"),
        ("from ..ode.solve import solve", "ode"),
        ("from .. import ode", "ode"),
        ("import floater.ode.stepper", "ode"),
        ("def f():\n    from floater.ode import solve", "ode"),
        ("import floater", ""),
        ("from .. import solve", ""),
        ("from floater import FlowConfig", ""),
        ("from . import hooks", "attachments"),
    ],
)
def test_no_way_of_importing_is_overlooked(line: str, room: str) -> None:
    assert rooms(SOURCE / "attachments" / "attachment.py", line) == {room}


def test_the_drawn_import_graph_is_that_of_the_code() -> None:
    page = import_graph.PAGE.read_text(encoding="utf-8")
    assert import_graph.filled(page, import_graph.graph()) == page, "run tools/import_graph.py"
