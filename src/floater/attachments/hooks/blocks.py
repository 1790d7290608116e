"""Entry of a block and of the embeddings in front of the blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import AttachmentError
from ..context import HookContext
from ..sites import InsertionPoint
from ..stack_encodings import StackEncodings
from .arguments import ENCODINGS_ARGUMENT, EntryHook, ForwardArguments, NewArguments


class BlockEntry:
    """Entry of a block: add encodings to its input and fill the slots of its projections.

    Attributes:
        points_by_call: the insertion points of each call, by the number of the block.
        input_points: those of the stack's input, which the first block that is called adds (in
            training, LayerDrop may skip some blocks).
    """

    def __init__(self, context: HookContext, module: nn.Module) -> None:
        self._context, self._arguments = context, ForwardArguments(module)
        self.points_by_call: dict[int, tuple[InsertionPoint, ...]] = {}
        self.input_points: tuple[InsertionPoint, ...] = ()

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        pending = kwargs.get(ENCODINGS_ARGUMENT)
        if pending is not None and pending.serves(module):
            del kwargs[ENCODINGS_ARGUMENT]  # from a dictionary that only this call has
            return None
        kwargs = {name: value for name, value in kwargs.items() if name != ENCODINGS_ARGUMENT}
        if pending is None:
            self._empty_slots()
            if self._context.enabled and (any(self.points_by_call.values()) or self.input_points):
                raise AttachmentError(
                    f"{type(module).__name__} was called without the encodings of its tokens; call"
                    " the whole model (a block cannot be called or checkpointed on its own), or"
                    " call it inside attachment.disabled()."
                )
            return args, kwargs
        _check_checkpointing(module)
        name = None if args else self._arguments.first
        hidden: Tensor = args[0] if name is None else kwargs[name]
        if pending.fill_all(hidden) and pending.serves(module):
            return args, kwargs
        encodings = pending.encodings(hidden)
        first = encodings.first_block(module)
        for point in (*(self.input_points if first else ()), *self._next_points(encodings)):
            if point.module is None:
                hidden = encodings.add_to_input(point, hidden)
            else:
                encodings.fill_slot(point)
        if name is not None:
            return args, {**kwargs, name: hidden}
        return (hidden, *args[1:]), kwargs

    def _next_points(self, encodings: StackEncodings) -> tuple[InsertionPoint, ...]:
        if not self._context.layout.shared_blocks:
            return next(iter(self.points_by_call.values()))
        encodings.block_calls += 1
        return self.points_by_call[encodings.block_calls]

    def _empty_slots(self) -> None:
        for points in self.points_by_call.values():
            for point in points:
                if point.module is not None:
                    slot: Any = point.module.slot
                    slot.discard()


class EmbeddingsEntry(EntryHook):
    """Entry of BERT's embeddings, which look up `token_type_ids` and `position_ids` in buffers of
    limited length: pass both explicitly.
    """

    def _change(
        self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        tokens = arguments.get("input_ids")
        if tokens is None:
            tokens = arguments["inputs_embeds"][..., 0]
        zeros = torch.zeros(tokens.shape, dtype=torch.int64, device=tokens.device)
        if arguments.get("token_type_ids") is None:
            arguments["token_type_ids"] = zeros
        arguments["position_ids"] = zeros  # the replaced table returns zeros for any position
        return (), arguments


def _check_checkpointing(module: nn.Module) -> None:
    """Refuse re-entrant gradient checkpointing."""
    function = getattr(module, "_gradient_checkpointing_func", None)
    if function is None or not (
        module.training and getattr(module, "gradient_checkpointing", False)
    ):
        return
    if getattr(function, "keywords", {}).get("use_reentrant"):
        raise AttachmentError(
            "Re-entrant gradient checkpointing loses the gradient of encodings; enable it with "
            'gradient_checkpointing_kwargs={"use_reentrant": False} (the default).'
        )
