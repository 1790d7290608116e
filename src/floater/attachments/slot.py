"""A slot of a module: what a block passes to it for its next call."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Slot(Generic[T]):
    """What a block passes to a part of it for the next call, per thread. Empty in copies."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: T | None = None
        # graphs are traced by one thread, and tracing does not support thread-local values

    def put(self, value: T | None) -> None:
        """Fill the slot."""
        if torch.compiler.is_compiling():
            self._traced = value
        else:
            self._threads.value = value

    def take(self) -> T | None:
        """Empty the slot and return what was in it."""
        if torch.compiler.is_compiling():
            value = self._traced
            self._traced = None
            return value
        value = getattr(self._threads, "value", None)
        self._threads.value = None
        return value

    def is_filled(self) -> bool:
        """Whether there is something in it, outside of graphs."""
        return getattr(self._threads, "value", None) is not None

    def discard(self) -> bool:
        """Empty the slot; return whether there was something in it."""
        return self.take() is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()
