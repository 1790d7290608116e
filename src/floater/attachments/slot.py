"""A slot of a module: what a block passes to it for its next call."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Slot(Generic[T]):
    """What a block passes to a part of it for the next call, per thread. Empty in copies.

    A graph that torch.compile traces keeps the value in the slot itself, because tracing does not
    support thread-local values. Where a graph ends between `put` and `take`, one of them may run
    inside a graph and the other one outside.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: T | None = None
        self._by_graph = False
        """Whether the last value was put by a graph."""

    def put(self, value: T | None) -> None:
        """Fill the slot."""
        if torch.compiler.is_compiling():
            self._traced, self._by_graph = value, True
        else:
            self._threads.value, self._by_graph = value, False

    def take(self) -> T | None:
        """Empty the slot and return what was in it."""
        if self._by_graph:
            value = self._traced
            self._traced = None
            return value
        return self._take_outside() if torch.compiler.is_compiling() else self._take_own()

    def _take_own(self) -> T | None:
        value = getattr(self._threads, "value", None)
        self._threads.value = None
        return value

    _take_outside = torch.compiler.disable(_take_own)

    def is_filled(self) -> bool:
        """Whether there is something in it, outside of graphs."""
        value = self._traced if self._by_graph else getattr(self._threads, "value", None)
        return value is not None

    def discard(self) -> None:
        """Empty the slot."""
        self.put(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()
