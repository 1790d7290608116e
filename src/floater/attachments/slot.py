"""A slot of a module: what a block passes to it for its next call."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class StepVectors(threading.local):
    """The vectors that the projections of a stack take in a step of generation, per thread."""

    vectors: list[Tensor | None] | None = None
    """One for each slot that was given a number; None once it is taken. None outside of steps."""

    def is_left(self) -> bool:
        """Whether a vector was not taken."""
        return bool([vector for vector in self.vectors or () if vector is not None])


_NO_STEP = StepVectors()


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
        """Whether the value was put by a graph."""
        self._step, self._number = _NO_STEP, 0

    def join(self, step: StepVectors, number: int) -> None:
        """From now on, take the vector of this number first, if there is one."""
        self._step, self._number = step, number

    def take_vector(self) -> Tensor | None:
        """Take the vector of a step of generation, if there is one."""
        if torch.compiler.is_compiling():
            found: Tensor | None = None if self._by_graph else self._take_vector_outside()
            return found
        vectors = self._step.vectors
        if vectors is None:
            return None
        number = self._number
        vector, vectors[number] = vectors[number], None
        return vector

    _take_vector_outside = torch.compiler.disable(take_vector)

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
            self._traced, self._by_graph = None, False
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
        vectors = self._step.vectors
        return value is not None or (vectors is not None and vectors[self._number] is not None)

    def discard(self) -> None:
        """Empty the slot."""
        self.put(None)
        self.take_vector()

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()
