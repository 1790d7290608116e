"""Pass encodings from a stack to its blocks where the stack drops unknown arguments."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from ..class_swap import ClassSwapMixin, swap_in, swap_out
from .arguments import ENCODINGS_ARGUMENT
from .pending import PendingEncodings


class Carrier:
    """Passes pending encodings from a stack to its blocks, per thread. Empty in copies."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: list[PendingEncodings] = []  # graphs are traced by one thread

    def _current_stack(self) -> list[PendingEncodings]:
        if torch.compiler.is_compiling():
            return self._traced
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[PendingEncodings] = self._threads.stack
        return stack

    def clear(self) -> None:
        """Forget a forward pass that was interrupted: torch calls no hook at its end then."""
        self._current_stack().clear()

    def push(self, pending: PendingEncodings) -> None:
        """Begin a forward pass through the stack."""
        self._current_stack().append(pending)

    def pop(self) -> PendingEncodings | None:
        """End it."""
        stack = self._current_stack()
        return stack.pop() if stack else None

    def top(self) -> PendingEncodings | None:
        """The pending encodings of the running forward pass."""
        stack = self._current_stack()
        return stack[-1] if stack else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Carrier, ()


class _Carried(ClassSwapMixin):
    """A block that gets its encodings from a carrier before anything else, including gradient
    checkpointing, sees its arguments.
    """

    carrier: Carrier

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pending = self.carrier.top()
        if pending is not None:
            kwargs[ENCODINGS_ARGUMENT] = pending
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


def carry(block: nn.Module, carrier: Carrier) -> None:
    """Let a block get its encodings from a carrier."""
    swap_in(block, _Carried, carrier)


def uncarry(block: nn.Module) -> None:
    """Undo :func:`carry`."""
    swap_out(block, _Carried)
