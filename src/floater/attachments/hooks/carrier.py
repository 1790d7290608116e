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
    """Passes pending encodings from a stack to its blocks, per thread. Empty in copies.

    As in :class:`~floater.attachments.slot.Slot`, a stack may begin inside a graph of torch.compile
    and enter its blocks outside, or the other way round.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: list[PendingEncodings] = []
        self._by_graph = False
        """Whether the last stack began inside a graph."""

    def _own_stack(self) -> list[PendingEncodings]:
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[PendingEncodings] = self._threads.stack
        return stack

    def _last(self, remove: bool) -> PendingEncodings | None:
        stack = self._traced if self._by_graph else self._own_stack()
        if not stack:
            return None
        return stack.pop() if remove else stack[-1]

    _last_outside = torch.compiler.disable(_last)

    def _find(self, remove: bool) -> PendingEncodings | None:
        if torch.compiler.is_compiling() and not self._by_graph:
            found: PendingEncodings | None = self._last_outside(remove)
            return found
        return self._last(remove)

    def clear(self) -> None:
        """Forget a forward pass that was interrupted: torch calls no hook at its end then."""
        self._by_graph = torch.compiler.is_compiling()
        (self._traced if self._by_graph else self._own_stack()).clear()

    def push(self, pending: PendingEncodings) -> None:
        """Begin a forward pass through the stack."""
        self._by_graph = torch.compiler.is_compiling()
        (self._traced if self._by_graph else self._own_stack()).append(pending)

    def pop(self) -> PendingEncodings | None:
        """End it."""
        return self._find(remove=True)

    def top(self) -> PendingEncodings | None:
        """The pending encodings of the running forward pass."""
        return self._find(remove=False)

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
