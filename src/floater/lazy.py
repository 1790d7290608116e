"""Names of a package that are imported when they are first used: torch is slow to import, and a
report does without it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    """A package that looks up its public names (name → module, relative to it) when they are asked
    for.
    """

    _places: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._places:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(import_module(self._places[name], self.__name__), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._places})


def lazily(package: str, places: Mapping[str, str]) -> None:
    """Give a package public names that are imported when they are first used.

    Args:
        package: the package's `__name__`.
        places: the module of each name, relative to the package (".ode").
    """
    module = sys.modules[package]
    module.__dict__["_places"] = dict(places)
    module.__dict__["__all__"] = sorted(places)
    module.__class__ = _Lazy
