"""Public names that are imported when they are first used.

torch is slow to import, and `floater report` does not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """A package whose public names are imported on first use."""

    _modules: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._modules[name], self.__name__), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._modules})


def lazily(package: str, modules: Mapping[str, str]) -> None:
    """Give a package public names that are imported when they are first used.

    Args:
        package: the package's `__name__`.
        modules: the module of each name, relative to the package (".ode").
    """
    module = sys.modules[package]
    module.__dict__["_modules"] = dict(modules)
    module.__dict__["__all__"] = sorted(modules)
    module.__class__ = _LazyPackage
