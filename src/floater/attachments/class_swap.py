"""Change the class of a module in place; its parameters, names and hooks stay."""

from __future__ import annotations

from typing import Any


class ClassSwapMixin:
    """Base of mixins for :func:`swapped_class`; copies and pickles rebuild the combined class."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        mixin, original = type(self).__bases__
        return _rebuild, (mixin, original), self.__dict__


def swapped_class(mixin: type, original: type) -> type:
    """The class `original` with the methods of `mixin` in front."""
    return type(f"{mixin.__name__[1:]}{original.__name__}", (mixin, original), {})


def _rebuild(mixin: type, original: type) -> object:
    return object.__new__(swapped_class(mixin, original))
