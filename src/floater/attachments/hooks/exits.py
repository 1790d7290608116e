"""Exit of a stack: make sure that all encodings were used."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...errors import AttachmentError
from ..context import HookContext
from ..sites import BlockSites, InsertionPoint
from .arguments import ENCODINGS_ARGUMENT
from .carrier import Carrier
from .pending import PendingEncodings


class StackExit:
    """Exit of a stack: raise if encodings were not used, and record the positions of an encoder's
    tokens for the decoder.
    """

    def __init__(self, context: HookContext, stack: str, carrier: Carrier | None) -> None:
        self._context, self._stack, self._carrier = context, stack, carrier
        self._own_slots: list[tuple[Any, InsertionPoint, BlockSites]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has slots of its own."""
        return {**self.__dict__, "_own_slots": None}

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._context.enabled:
            return None
        pending = kwargs.get(ENCODINGS_ARGUMENT) if self._carrier is None else self._carrier.pop()
        if torch.compiler.is_compiling():
            return None
        unused = None if pending is not None and pending.all_taken() else self._unused(pending)
        self._context.end_step(self._stack)
        if output is None or pending is None:  # the forward failed
            return None
        if self._context.stack(self._stack).built_in is not None and not pending.built_in_used:
            raise AttachmentError(
                f"A forward pass through {type(module).__name__} skipped its attachment: its "
                "built-in positions were not called; do not pass `position_embeddings`."
            )
        if not pending.used and self._context.has_sites(self._stack) and not module.training:
            raise AttachmentError(
                f"A forward pass through {type(module).__name__} skipped its attachment: no block "
                f"of the {self._stack} was called; name the blocks that it really calls with "
                "floater.Sites(…, targets={…})."
            )
        if unused is not None:
            raise AttachmentError(
                f"A forward pass through {type(module).__name__} skipped its attachment: {unused}"
                " (no fused kernels that read the weights)."
            )
        if self._stack == "encoder" and len(self._context.plan.stacks) > 1:
            return pending.record_positions(output)
        return None

    def _unused(self, pending: PendingEncodings | None) -> str | None:
        """Empty all slots; return what did not use its encodings, and what to do about it.

        Keys and values of the other stack do not count, because they may be cached. Where all slots
        were filled at once, blocks that were not entered do not count either.
        """
        entered = None if pending is None or not pending.filled else pending.entered
        unused = None
        for slot, point, block in self._slots():
            if not slot.is_filled():
                continue
            slot.discard()
            if point.tokens != "stack":
                continue
            if entered is None or id(block.module) in entered:
                unused = unused or _describe(point, block.number)
        return unused

    def _slots(self) -> list[tuple[Any, InsertionPoint, BlockSites]]:
        """The slots of the stack, and what they belong to."""
        if self._own_slots is None:
            self._own_slots = [
                (point.module.slot, point, block)
                for block in self._context.stack(self._stack).blocks
                for point in block.points
                if point.module is not None
            ]
        return self._own_slots


def _describe(point: InsertionPoint, block: int) -> str:
    """What did not use its encodings, and what to do about it."""
    if point.attention is not None:
        return (
            f"the self-attention of block {block} did not call transformers' attention interface; "
            "run the model with its default attention"
        )
    return (
        f"the projection {'/'.join(point.letters)} of block {block} was not called; attach with"
        ' sites="blocks", or run the model with its default attention'
    )
