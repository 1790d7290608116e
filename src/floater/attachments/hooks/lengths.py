"""What a forward pass does about the range of training: record it, keep within it, or say that an
input lies past it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ...errors import AttachmentError, LengthError, RangeWarning, caller_level
from ..beyond import (
    compressed,
    compression,
    describe_excess,
    is_past,
    largest,
    last_times,
    surely_within,
    token_mask,
)
from ..context import HookContext
from ..site_encoders import ForwardTables, SiteEncoders
from ..token_positions import TokenPositions

FACTORS_FIELD = "floater_factors"
"""Field of an encoder's output with the factors that compressed its times, for the decoder."""


class ForwardLengths:
    """The part of the range of training in one forward pass through a stack."""

    def __init__(
        self,
        context: HookContext,
        encoders: SiteEncoders,
        stack: str,
        tables: ForwardTables,
        arguments: dict[str, Any],
    ) -> None:
        self._encoders, self._stack, self._tables = encoders, stack, tables
        self._two_stacks = len(context.plan.stacks) > 1
        self._padding = context.padding
        self._mask = arguments.get("attention_mask")
        self._ids = arguments.get("input_ids") if self._is_target() else None
        self._source_mask = arguments.get("encoder_attention_mask")
        states = arguments.get("encoder_hidden_states")
        if tables.factors is None and isinstance(states, Tensor):
            tables.factors = getattr(states, FACTORS_FIELD, None)

    def _is_target(self) -> bool:
        return self._two_stacks and self._stack == "decoder"

    def settle(
        self,
        own: TokenPositions,
        source: TokenPositions | None,
        past: int | Tensor,
        *,
        moved: bool,
        given: bool,
    ) -> tuple[TokenPositions, TokenPositions | None]:
        """Positions of the stack's and the source's tokens, within the range if that is asked for.

        Args:
            own: positions of the stack's tokens.
            source: those of the other stack, for cross-attention.
            past: number of tokens in the cache.
            moved: they are at random times (`TimeJitter`).
            given: they are at times of the caller (`Attachment.at`), which are not compressed.
        """
        encoders = self._encoders
        if encoders.training and torch.is_grad_enabled():
            last = last_times(own, self.tokens(own), encoders.delta)
            encoders.trained_times.record(self._stack, last)
            return own, source
        if moved or (encoders.beyond == "extrapolate" and torch.compiler.is_compiling()):
            return own, source
        if not torch.compiler.is_compiling():
            return self._keep_within(own, source, past, given)
        kept: tuple[TokenPositions, TokenPositions | None] = self._keep_within_outside(
            own, source, past, given
        )
        return kept

    def _keep_within(
        self,
        own: TokenPositions,
        source: TokenPositions | None,
        past: int | Tensor,
        given: bool,
    ) -> tuple[TokenPositions, TokenPositions | None]:
        known = self._encoders.known_range()
        if known and self._encoders.beyond == "compress" and not given:
            factors = self._factors(own, source, past, known)
            if self._two_stacks and self._stack == "encoder":
                self._tables.factors = factors
            if factors is not None and bool((factors < 1).any()):
                self._refuse_baked()
                delta = self._encoders.delta
                own = compressed(own, factors, delta)
                source = None if source is None else compressed(source, factors, delta)
        limit = known.get(self._stack)
        generated = self._is_target() and int(past) > 0  # the source is the input, not these
        # who sets times knows how far they go, and series end a little apart
        chosen = given and self._encoders.beyond == "extrapolate"
        if limit is not None and not generated and not chosen:
            self._check(own, limit)
        return own, source

    _keep_within_outside = torch.compiler.disable(_keep_within)

    def _factors(
        self,
        own: TokenPositions,
        source: TokenPositions | None,
        past: int | Tensor,
        known: dict[str, float],
    ) -> Tensor | None:
        """What the times of each row are multiplied by; None for nothing. The two sides of an
        encoder-decoder share what the source needs, which is known before any target token.
        """
        delta = self._encoders.delta
        if self._is_target() and source is not None:
            limit = known.get("encoder")
            if limit is None or self._tables.factors is not None:
                return None if limit is None else self._tables.factors.cpu()  # type: ignore[union-attr]
            tokens = token_mask(source, self._source_mask, None, None)
            return self._compression(last_times(source, tokens, delta), limit)
        limit = known.get(self._stack)
        if limit is None:
            return None
        if surely_within(own, limit, delta):
            return torch.ones(1, dtype=torch.float64)
        factors = self._compression(last_times(own, self.tokens(own), delta), limit)
        if int(past) and bool((factors < 1).any()):
            raise AttachmentError(
                'beyond="compress" needs the whole input at once, because a longer input has other '
                f"times from its first token on, but {int(past)} tokens are in the cache and the "
                "next ones lie past the range of training; generate with use_cache=False, set "
                'times with attachment.at(times), or choose beyond="extrapolate".'
            )
        return factors

    def _compression(self, last: float | Tensor, limit: float) -> Tensor:
        if not limit and largest(last) > 0:
            raise LengthError(
                'beyond="compress" needs a range of training of more than one token, but the '
                "inputs of training had one token each; train on longer inputs, or choose "
                'beyond="extrapolate".'
            )
        return compression(last, limit)

    def _refuse_baked(self) -> None:
        if self._encoders.baked_length is not None:
            raise AttachmentError(
                'beyond="compress" needs times between those of a baked attachment for an input '
                'past the range of training; call unbake() first, or choose beyond="extrapolate".'
            )

    def _check(self, own: TokenPositions, limit: float) -> None:
        """Raise, or warn once, if tokens lie past the range."""
        encoders = self._encoders
        if (encoders.warned and encoders.beyond != "error") or surely_within(
            own, limit, encoders.delta
        ):
            return
        time = largest(last_times(own, self.tokens(own), encoders.delta))
        if not is_past(time, limit):
            return
        excess = describe_excess(encoders.label(self._stack), time, limit, encoders.delta)
        if encoders.beyond == "error":
            raise LengthError(
                f"{excess}; shorten it, train on longer inputs, or choose another `beyond`."
            )
        encoders.warned = True
        warnings.warn(f"{excess}; {encoders.advice()}", RangeWarning, stacklevel=caller_level())

    def tokens(self, positions: TokenPositions) -> Tensor | None:
        """Which [B, L] of the stack's tokens are not padding; None for all."""
        return token_mask(positions, self._mask, self._ids, self._padding)
