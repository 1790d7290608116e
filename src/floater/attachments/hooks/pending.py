"""The encodings of a stack between its entry and its first block, and how a decoder learns the
positions of its encoder's tokens.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ...encoders import TableFlow
from ...errors import ArgumentError, AttachmentError, caller_level
from ..context import HookContext
from ..site_encoders import ForwardTables, SiteEncoders
from ..stack_encodings import StackEncodings, TurnedPhases
from ..table_rows import AddedRows
from ..token_positions import (
    IndexRange,
    TokenPositions,
    at_custom_times,
    cached_length,
    consecutive,
    count_mask,
    number_tokens,
)
from .lengths import FACTORS_FIELD, ForwardLengths

POSITIONS_FIELD = "floater_positions"
"""Field of an encoder's output with the positions of its tokens, for the decoder."""
DRAW_FIELD, TIMES_FIELD = "floater_draw", "floater_times"
"""Fields of an encoder's output with what was drawn for its rows (`TimeJitter`), and with the
random times of its tokens.
"""

_INPUTS = ("input_ids", "inputs_embeds", "input_features")
"""Arguments with the input of a stack."""


@dataclass
class BaseModelOutputWithPositions(BaseModelOutput):
    """An encoder's output with the positions of its tokens; the factors that compressed their
    times, if they are; and their random times while training with jitter. `generate` expands all
    of them for beams like any other field.
    """

    floater_positions: Tensor | None = None
    floater_factors: Tensor | None = None
    floater_draw: Tensor | None = None
    floater_times: Tensor | None = None


class PendingEncodings:
    """Encodings of a stack, computed when its first block is entered: only then is the number of
    tokens certain.
    """

    def __init__(
        self,
        context: HookContext,
        encoders: SiteEncoders,
        stack: str,
        tables: ForwardTables,
        arguments: dict[str, Any],
    ) -> None:
        self._context, self._encoders = context, encoders
        self._stack, self._tables = stack, tables
        self._own = number_tokens(
            context.layout.numbering,
            arguments,
            context.padding,
            context.indices == "mask",
            known_stack=not context.layout.by_pattern,
        )
        self._given = self._given_rows(arguments)
        if self._given is not None:
            offset = context.table_offset(context.stack(stack))
            self._own = TokenPositions((self._given - offset).clamp(min=0), None)
        if self._own is not None:
            context.check_model_positions(stack, self._own)
        self._past = cached_length(arguments)
        if isinstance(self._past, Tensor):
            self._past = self._past.clone()  # a static cache updates its length in place
        self._times = context.custom_times
        self._lengths = ForwardLengths(context, encoders, stack, tables, arguments)
        self._source = self._source_positions(arguments)
        states = arguments.get("encoder_hidden_states")
        if tables.moved_source is None:
            tables.share_draw(getattr(states, DRAW_FIELD, None), getattr(states, TIMES_FIELD, None))
        if stack == "encoder":
            tables.source = self._own
        self._encodings: StackEncodings | None = None
        self._inputs = [arguments.get(name) for name in _INPUTS]
        self.built_in_used = False
        """Whether built-in positions have asked for what is added to them."""
        self.filled = False
        """Whether the slots of all blocks are filled at once."""
        self.entered: set[int] = set()
        """The blocks that were entered since then, by their id."""
        self._entered_again = False

    @property
    def used(self) -> bool:
        """Whether a block has asked for the encodings."""
        return self._encodings is not None

    def encodings(self, hidden: Tensor) -> StackEncodings:
        """The encodings; `hidden` [B, L, dim] is the input of the first block."""
        if self._encodings is None:
            own = self._own or consecutive(hidden.shape[1], self._past, hidden.device)
            _check_length(own, hidden)
            source = self._source
            batch, delta = hidden.shape[0], self._encoders.delta
            draw = None if self._times is not None else self._tables.draw(batch)
            if draw is not None:
                own = draw.move(own, delta)
                if self._stack == "encoder":
                    self._tables.moved_source = own
                elif source is not None:
                    if self._tables.moved_source is None:
                        self._warn_of_other_times()
                    source = self._tables.moved_source or draw.move(source, delta)
            if self._times is not None:
                two_stacks = (
                    source is not None or self._stack == "decoder" or self._times.source is not None
                )
                is_source = two_stacks and self._stack == "encoder"
                times = self._times.source if is_source else self._times.target
                own = at_custom_times(times, own, self._past, batch, delta)
                if source is not None:
                    source = at_custom_times(self._times.source, source, 0, batch, delta)
            own, source = self._lengths.settle(
                own,
                source,
                self._past,
                moved=draw is not None,
                given=self._times is not None,
            )
            self._encodings = self._encoders.encode(
                self._tables, own, source, hidden.device, self._past
            )
        return self._encodings

    def _warn_of_other_times(self) -> None:
        """Say that the encoder, if it has encodings, used other random times than the decoder."""
        if torch.compiler.is_compiling() or not self._context.has_sites("encoder"):
            return
        warnings.warn(
            "The decoder trains with random times (TimeJitter), but got hidden states without those"
            " of their tokens, so it drew new ones for the source, which differ from those in the "
            "encoder; pass the encoder's output on unchanged.",
            stacklevel=caller_level(),
        )

    def fill_all(self, hidden: Tensor) -> bool:
        """Fill the slots of all blocks, where one position is all that they need; return whether
        that was done. `hidden` [B, L, dim] is the input of the first block.
        """
        if hidden.shape[1] != 1 or self._encodings is not None:
            return False
        slots = self._context.step_slots(self._stack)
        self.filled = slots is not None and self.encodings(hidden).fill_all(slots, hidden)
        return self.filled

    def serves(self, block: nn.Module) -> bool:
        """Whether the slots of a block that is entered now are filled already."""
        if not self.filled:
            return False
        if id(block) in self.entered:
            self._entered_again = True
            return False
        self.entered.add(id(block))
        return True

    def all_taken(self) -> bool:
        """Whether the slots of all blocks were filled at once, only then, and are empty now."""
        if not self.filled or self._entered_again:
            return False
        slots = self._context.step_slots(self._stack)
        return slots is not None and not slots.step.is_left()

    def turned(self, hidden: Tensor) -> TurnedPhases:
        """What is added to the phases of a rotary model; `hidden` [B, L, dim] enters the blocks."""
        self.built_in_used = True
        site = self._context.stack(self._stack).built_in
        assert site is not None
        return self.encodings(hidden).turned(site)

    def added_rows(self) -> AddedRows:
        """What is added to the rows of a model's position table."""
        self.built_in_used = True
        stack = self._context.stack(self._stack)
        encoder = self._encoders.encoders["table"]
        assert stack.built_in is not None
        assert isinstance(encoder, TableFlow)
        tokens = self._tokens()
        encodings, positions = self.encodings(tokens).rows(stack.built_in)
        return AddedRows(
            encodings,
            positions.all_places(self._encoders.delta, tokens.device),
            self._lengths.tokens(positions),
            positions.is_token,
            None if positions.times is not None else self._given,
            encoder,
            self._context.table_offset(stack),
        )

    def _tokens(self) -> Tensor:
        """Something [B, L, …] with an entry for every token of the stack."""
        ids, embeddings, features = self._inputs
        if isinstance(ids, Tensor):
            # several inputs per example [batch, choices, length] enter the blocks as rows
            return ids.flatten(0, -2)
        if isinstance(features, Tensor):  # [B, bands, frames]
            return features[:, 0, :: self._context.layout.frames]
        assert isinstance(embeddings, Tensor)
        return embeddings

    def _given_rows(self, arguments: dict[str, Any]) -> Tensor | None:
        """The rows of its position table that a caller chose with `position_ids`, in a model whose
        table has rows before that of position 0.
        """
        context = self._context
        given = arguments.get("position_ids")
        if (
            context.layout.numbering != "padding"
            or context.stack(self._stack).built_in is None
            or not isinstance(given, Tensor)
        ):
            return None
        return given.unsqueeze(0) if given.dim() == 1 else given

    def record_positions(self, output: Any) -> Any:
        """An encoder's output with the positions of its tokens, for a decoder that is called
        later; None to leave the output as it is.
        """
        if self._own is None:
            return None
        states: Tensor = output[0]
        index = self._own.index
        if isinstance(index, IndexRange):
            index = index.tensor(states.device).unsqueeze(0)
        index = index.to(states.device).expand(states.shape[0], -1)
        setattr(states, POSITIONS_FIELD, index)
        factors = self._tables.factors
        if factors is not None:
            factors = factors.to(states.device).expand(states.shape[0])
            setattr(states, FACTORS_FIELD, factors)
        recorded: dict[str, Any] = {POSITIONS_FIELD: index, FACTORS_FIELD: factors}
        drawn = self._tables.source_draw()
        if drawn is not None:
            for name, value in zip((DRAW_FIELD, TIMES_FIELD), drawn, strict=True):
                recorded[name] = value
                setattr(states, name, value)
        return (
            BaseModelOutputWithPositions(**output, **recorded)
            if type(output) is BaseModelOutput
            else None
        )

    def _source_positions(self, arguments: dict[str, Any]) -> TokenPositions | None:
        """Positions of the other stack's tokens, as that stack counted them."""
        states = arguments.get("encoder_hidden_states")
        if states is None:
            return None
        if self._tables.source is not None:
            return self._tables.source
        recorded = recorded_positions(getattr(states, POSITIONS_FIELD, None), states)
        if recorded is not None:
            return recorded
        length, mask = states.shape[1], arguments.get("encoder_attention_mask")
        if self._context.indices == "mask":
            return count_mask(mask, length, 0, states.device)
        if self._context.layout.numbering == "padding":
            # The encoder's input is unknown here; where it is masked, it was padding.
            if mask is not None and mask.dim() == 2:
                return count_mask(mask, length, 0, states.device)
            if states.shape[0] > 1 and not torch.compiler.is_compiling():
                warnings.warn(
                    "The decoder got hidden states without an attention mask and without the "
                    "positions of their tokens, so all of them are counted as tokens, none as "
                    "padding; pass the encoder's whole output as `encoder_outputs`, or an "
                    "attention mask.",
                    stacklevel=caller_level(),
                )
        return consecutive(length, 0, states.device)


def recorded_positions(index: Any, states: Tensor) -> TokenPositions | None:
    """Positions that `PendingEncodings.record_positions` recorded, None if there are none."""
    if not isinstance(index, Tensor):
        return None
    if index.shape != states.shape[:2]:
        raise ArgumentError(
            f"`encoder_outputs` must be an encoder's output as it was returned, but its "
            f"{POSITIONS_FIELD} have shape {tuple(index.shape)} where its states have "
            f"{tuple(states.shape[:2])}; select rows in both, or make a new "
            "BaseModelOutput(last_hidden_state=…)."
        )
    shared = None
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        from_zero = torch.arange(index.shape[1])
        shared = IndexRange(0, index.shape[1]) if bool((index == from_zero).all()) else None
    return TokenPositions(index, index.shape[1] if shared else None, shared_range=shared)


def _check_length(own: TokenPositions, hidden: Tensor) -> None:
    """Refuse positions that were counted on other tokens than those that enter the first block, and
    empty inputs.
    """
    if not (torch.compiler.is_compiling() or (hidden.shape[0] and hidden.shape[1])):
        raise ArgumentError(
            "An input must have at least one row and one token, but the first block gets "
            f"{hidden.shape[0]} rows of {hidden.shape[1]} tokens."
        )
    if own.length != hidden.shape[1] and not torch.compiler.is_compiling():
        raise AttachmentError(
            f"Positions were counted for {own.length} tokens, but {hidden.shape[1]} enter the "
            "first block; pass `position_ids` [batch, "
            f'{hidden.shape[1]}], or attach with indices="model".'
        )
