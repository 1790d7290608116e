"""The package's names come when they are asked for, and then they are the right ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

import floater
import floater.training


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, floater, floater.cli, floater.training.records; print('torch' in sys.modules, 'attach' in dir(floater))"
    assert run(code).split() == ["False", "True"]


def test_attach_is_the_function_whoever_imported_its_package_first() -> None:
    first = "import floater.attach.sites, floater; from floater.attach import Sites"
    assert run(f"{first}; print(type(floater.attach).__name__, floater.Sites is Sites)").split() == ["function", "True"]


@pytest.mark.parametrize("package", [floater, floater.training])
def test_every_listed_name_is_there(package: object) -> None:
    for name in dir(package):
        assert getattr(package, name) is not None or name in ("__file__", "__builtins__")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'floater' has no attribute 'atach'"):
        floater.atach  # type: ignore[attr-defined]  # noqa: B018
