"""Entry of a model and of its stacks: number the tokens and pass their encodings on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.utils.generic import ModelOutput

from ..context import HookContext
from ..site_encoders import ForwardTables
from ..token_positions import cached_length
from .arguments import ENCODINGS_ARGUMENT, TABLES, EntryHook, ForwardArguments, NewArguments
from .carrier import Carrier
from .lengths import FACTORS_FIELD
from .pending import (
    DRAW_FIELD,
    POSITIONS_FIELD,
    TIMES_FIELD,
    PendingEncodings,
    recorded_positions,
)


class ModelEntry(EntryHook):
    """Entry of an encoder-decoder: both stacks share their tables."""

    def _change(
        self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        lengths = [0]
        for name in ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds"):
            tensor = arguments.get(name)
            if tensor is not None:
                lengths.append(tensor.shape[1])
        past = cached_length(arguments)
        if isinstance(past, int):
            lengths[-1] += past
        tables = ForwardTables(self._context.live(), max(lengths))
        outputs = arguments.get("encoder_outputs")
        if isinstance(outputs, ModelOutput):
            tables.source = recorded_positions(outputs.get(POSITIONS_FIELD), outputs[0])
            tables.factors = outputs.get(FACTORS_FIELD)
            tables.share_draw(outputs.get(DRAW_FIELD), outputs.get(TIMES_FIELD))
        return args, {**kwargs, TABLES: tables}


class StackEntry:
    """Entry of a stack: number the tokens, and pass their encodings on to the blocks."""

    def __init__(
        self, context: HookContext, stack: str, module: nn.Module, carrier: Carrier | None
    ) -> None:
        self._context, self._stack, self._arguments = context, stack, ForwardArguments(module)
        self._carrier = carrier

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        kwargs = dict(kwargs)
        tables = kwargs.pop(TABLES, None)
        if self._carrier is not None:
            self._carrier.clear()
        if not torch.compiler.is_compiling():
            self._context.end_step(self._stack)  # one that was interrupted
        if not self._context.enabled:
            return args, kwargs
        self._context.check_adapters()
        if self._context.attention is not None and not torch.compiler.is_compiling():
            self._context.attention.check()
        encoders = self._context.live()
        tables = tables or ForwardTables(encoders)
        arguments = self._arguments.bind(args, kwargs)
        pending = PendingEncodings(self._context, encoders, self._stack, tables, arguments)
        if self._carrier is not None:
            self._carrier.push(pending)
        if not self._context.layout.drops_arguments:
            kwargs[ENCODINGS_ARGUMENT] = pending
        return args, kwargs
