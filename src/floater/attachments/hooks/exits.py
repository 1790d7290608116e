"""Exit of a stack: make sure that all encodings were used."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...errors import AttachmentError
from ..context import HookContext
from ..sites import InsertionPoint
from .arguments import ENCODINGS_ARGUMENT
from .carrier import Carrier


class StackExit:
    """Exit of a stack: raise if encodings were not used, and record the positions of an encoder's
    tokens for the decoder.
    """

    def __init__(self, context: HookContext, stack: str, carrier: Carrier | None) -> None:
        self._context, self._stack, self._carrier = context, stack, carrier

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._context.enabled:
            return None
        pending = kwargs.get(ENCODINGS_ARGUMENT) if self._carrier is None else self._carrier.pop()
        if torch.compiler.is_compiling():
            return None
        unused = self._unused()
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

    def _unused(self) -> str | None:
        """Empty all slots; return what did not use its encodings, and what to do about it.

        Keys and values of the other stack do not count, because they may be cached.
        """
        unused = None
        for block in self._context.stack(self._stack).blocks:
            for point in block.points:
                if point.module is not None:
                    slot: Any = point.module.slot
                    if slot.discard() and point.tokens == "stack":
                        unused = unused or _describe(point, block.number)
        return unused


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
