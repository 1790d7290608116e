"""The package's names come when they are asked for, and then they are the right ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import floater
import floater.training


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    ).stdout


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, floater, floater.cli, floater.runs.folder; print('torch' in sys.modules, "
        "'attach' in dir(floater))"
    )
    assert run(code).split() == ["False", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["floater.attachments.saving", "floater.attachments.saving as saving", "floater"]
)
def test_attach_is_a_function_and_its_package_has_another_name(first: str) -> None:
    code = (
        f"import {first}; import floater, floater.attachments.saving; from floater.attachments "
        "import Sites"
    )
    printed = (
        "print(type(floater.attach).__name__, floater.Sites is Sites, "
        "floater.attachments.saving.CONFIG_FILE)"
    )
    assert run(f"{code}; {printed}").split() == ["function", "True", "floater_config.json"]


def described(package: object) -> set[str]:
    """The names that type checkers are told of."""
    source = Path(str(package.__file__)).read_text(encoding="utf-8")  # type: ignore[attr-defined]
    return set(re.findall(r"^    from \S+ import (\w+) as \1$", source, re.MULTILINE))


@pytest.mark.parametrize("package", [floater, floater.training])
def test_every_listed_name_is_there_and_is_what_it_is_called(package: Any) -> None:
    assert described(package) == set(package.__all__)
    for name in package.__all__:
        assert name in dir(package)
        assert getattr(package, name).__name__ == name
    assert not hasattr(package, "nonsense")


@pytest.mark.slow
def test_a_star_imports_every_public_name() -> None:
    code = (
        "from floater import *; import floater; print(sorted(set(floater.__all__) - "
        "set(globals())), attach.__name__)"
    )
    assert run(code).split() == ["[]", "attach"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'floater' has no attribute 'atach'"):
        floater.atach  # type: ignore[attr-defined]  # noqa: B018
