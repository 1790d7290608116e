"""Change the class of a module in place; its parameters, names and hooks stay."""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn

from ..errors import AttachmentError


class ClassSwapMixin:
    """Base of mixins for :func:`swapped_class`; copies and pickles rebuild the combined class."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        mixin, original = type(self).__bases__
        return _rebuild, (mixin, original), self.__dict__


def swapped_class(mixin: type, original: type) -> type:
    """The class `original` with the methods of `mixin` in front."""
    return type(f"{mixin.__name__[1:]}{original.__name__}", (mixin, original), {})


def change_class(module: nn.Module, new: type) -> None:
    """Change the class of a module in place, also where accelerate (`device_map`) put a forward of
    its own into the module: what that calls becomes the forward of the new class.
    """
    old: Any = type(module)
    for name in ("forward", "_old_forward"):
        method = module.__dict__.get(name)
        if isinstance(method, MethodType) and method.__func__ is old.forward:
            module.__dict__[name] = MethodType(new.forward, module)  # type: ignore[attr-defined]
    module.__class__ = new


def swap_in(module: nn.Module, mixin: type, carrier: object) -> None:
    """Put the methods of a mixin in front of those of a module, with the carrier that they use."""
    change_class(module, swapped_class(mixin, type(module)))
    module.carrier = carrier  # type: ignore[assignment]


def swap_out(module: nn.Module, mixin: type) -> None:
    """Undo :func:`swap_in`; does nothing to other modules."""
    if isinstance(module, mixin):
        change_class(module, type(module).__bases__[1])
        del module.carrier


def has_own_forward(module: nn.Module) -> bool:
    """Whether the module has a forward of its own, which a change of its class would not reach."""
    return "forward" in module.__dict__ and not any(
        isinstance(method, MethodType) and method.__func__ is type(module).forward
        for method in (module.__dict__.get("forward"), module.__dict__.get("_old_forward"))
    )


def check_class_counts(module: nn.Module, path: str) -> None:
    """Refuse a module with a forward of its own."""
    if has_own_forward(module):
        raise AttachmentError(
            f"The module {path} must have the forward of its class {type(module).__name__}, but "
            "has another one that was set on it; attach first, and change it afterwards."
        )


def _rebuild(mixin: type, original: type) -> object:
    return object.__new__(swapped_class(mixin, original))
