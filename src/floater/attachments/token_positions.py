"""The position of every token: numbered as the base model does, or at times set by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..times import check_times
from .layouts import Numbering


@dataclass(frozen=True)
class IndexRange:
    """The same consecutive positions for every row: first, first + 1, …."""

    first: int
    length: int

    def tensor(self, device: torch.device) -> Tensor:
        """The positions as integers [length]."""
        return torch.arange(self.first, self.first + self.length, device=device)


@dataclass(frozen=True)
class TokenPositions:
    """Positions of the tokens of one forward pass.

    Attributes:
        index: a range, or integers [1 or B, L].
        bound: all positions lie below it; None if only the integers themselves tell.
        times: real-valued times [T] that the index points into; without them, position i stands at
            i·Δ.
        is_token: which [B, L] are tokens; the others are padding.
        shared_range: the same positions as a range, where all rows are known to agree; cheaper to
            look up.
        one_per_token: there is a time for every token, in order; cheaper to look up.
    """

    index: IndexRange | Tensor
    bound: int | None
    times: Tensor | None = None
    is_token: Tensor | None = None
    shared_range: IndexRange | None = None
    one_per_token: bool = False

    @property
    def length(self) -> int:
        """Tokens per row."""
        return self.index.length if isinstance(self.index, IndexRange) else self.index.shape[1]

    def count(self) -> int:
        """Upper bound on the number of distinct positions."""
        return self.index.length if isinstance(self.index, IndexRange) else self.index.numel()

    def table_length(self) -> int:
        """Length of a table with a row for every position."""
        if self.bound is not None:
            return self.bound
        assert isinstance(self.index, Tensor)
        lowest, highest = map(int, self.index.aminmax())
        if lowest < 0:
            raise ArgumentError(f"`position_ids` must not be negative, but contain {lowest}.")
        return highest + 1

    def table_length_without_padding(self) -> int:
        """Length of a table with a row for the position of every token."""
        if isinstance(self.index, IndexRange):
            return self.index.first + self.index.length
        return int((self.index if self.is_token is None else self.index * self.is_token).max()) + 1

    def places(self, delta: float) -> Tensor | None:
        """Where tokens with times of their own stand, t/Δ [1 or B, L]; None without such times."""
        if self.times is None:
            return None
        assert isinstance(self.index, Tensor)
        return self.times[self.index.to(self.times.device)] / delta

    def all_places(self, delta: float, device: torch.device) -> Tensor:
        """Where tokens stand [1 or B, L]: integers, or t/Δ if they have times of their own."""
        places = self.places(delta)
        if places is not None:
            nearest = places.round()
            return torch.where((places - nearest).abs() < 1e-6, nearest, places)
        if isinstance(self.index, IndexRange):
            return self.index.tensor(device).unsqueeze(0)
        return self.index

    def as_times(self, delta: float) -> TokenPositions:
        """The same positions, given by the times of the distinct ones."""
        assert isinstance(self.index, Tensor)
        unique, index = torch.unique(self.index, return_inverse=True)
        return TokenPositions(index, None, unique.cpu().to(torch.float64) * delta)


# Times set by the caller --------------------------------------------------------------------------


@dataclass(frozen=True)
class CustomTimes:
    """Times that a caller set with `Attachment.at`: float64 [1 or B, T]."""

    target: Tensor | None
    source: Tensor | None


def check_custom_times(times: Any, name: str) -> Tensor | None:
    """Check times passed to `Attachment.at`; return them as float64 [1 or B, T]."""
    if times is None:
        return None
    checked = check_times(times, name=name)
    if checked.dim() > 2 or checked.dim() == 0:
        raise ArgumentError(
            f"`{name}` must have shape [length] or [batch, length], but has {tuple(checked.shape)}."
        )
    return checked.unsqueeze(0) if checked.dim() == 1 else checked


def at_custom_times(
    times: Tensor | None,
    positions: TokenPositions,
    past: int | Tensor,
    batch: int,
    delta: float,
) -> TokenPositions:
    """Positions at a caller's times: rows are repeated for beams, and tokens past the last time
    continue by Δ.
    """
    if times is None:
        return positions
    first, length = int(past), positions.length
    rows, num_times = times.shape
    if batch % rows:
        raise ArgumentError(
            f"`at` was given times for {rows} sequences, but the batch holds {batch}."
        )
    if first == 0 and num_times > length:
        raise ArgumentError(
            f"`at` was given {num_times} times, but the sequences hold {length} tokens."
        )
    missing = first + length - num_times
    if missing > 0:
        steps = torch.arange(1, missing + 1, dtype=torch.float64, device=times.device) * delta
        times = torch.cat((times, times[:, -1:] + steps), 1)
    times = times[:, first : first + length]
    if times.requires_grad:  # every token keeps its own time, through which gradients flow
        index = torch.arange(rows * length).view(rows, length)
        if rows in (1, batch):
            return TokenPositions(index, None, times.reshape(-1), one_per_token=True)
        index = index.repeat_interleave(batch // rows, 0)
        return TokenPositions(index, None, times.reshape(-1))
    unique, index = torch.unique(times, return_inverse=True)
    if rows > 1 and batch > rows:
        index = index.repeat_interleave(batch // rows, 0)
    return TokenPositions(index, None, unique)


# Positions as the base model numbers them ---------------------------------------------------------


def cached_length(arguments: dict[str, Any]) -> int | Tensor:
    """Number of tokens that the cache already holds."""
    cache = arguments.get("past_key_values")
    if cache is None:
        return 0
    length: int | Tensor = cache.get_seq_length()
    return length


def consecutive(length: int, past: int | Tensor, device: torch.device) -> TokenPositions:
    """Consecutive positions after `past` earlier ones."""
    if isinstance(past, Tensor):
        if torch.compiler.is_compiling():
            return TokenPositions((torch.arange(length, device=device) + past).unsqueeze(0), None)
        past = int(past)
    return TokenPositions(IndexRange(past, length), past + length)


def number_tokens(
    numbering: Numbering,
    arguments: dict[str, Any],
    padding: int | None,
    by_mask: bool,
    *,
    known_stack: bool = True,
) -> TokenPositions | None:
    """Positions of the tokens that enter a stack, or None where only its blocks know how many there
    are.

    Args:
        numbering: how the model numbers its tokens.
        arguments: arguments of the stack's forward, by name.
        padding: id of the padding token.
        by_mask: count the attention mask instead.
        known_stack: whether the blocks are known to process the tokens of `input_ids`. In an
            unknown architecture they may belong to a decoder, which has other tokens.
    """
    ids, embeds = arguments.get("input_ids"), arguments.get("inputs_embeds")
    tokens = ids if ids is not None else embeds
    if numbering == "hidden_states" or tokens is None:
        return None
    length, device = (tokens.shape[-1] if ids is not None else tokens.shape[1]), tokens.device
    past = cached_length(arguments)
    position_ids = arguments.get("position_ids")
    given = position_ids is not None and numbering in ("position_ids", "mask")
    if by_mask or (numbering == "mask" and not given):
        return count_mask(arguments.get("attention_mask"), length, past, device)
    if given:
        assert position_ids is not None
        index = _check_position_ids(position_ids)
        shared = _as_range(index)
        bound = None if shared is None else shared.first + shared.length
        return TokenPositions(index, bound, shared_range=shared)
    if numbering == "padding" and position_ids is not None:
        return _from_table_rows(position_ids, ids, arguments.get("attention_mask"), padding, past)
    if numbering == "padding" and ids is not None:
        return _count_non_padding(ids, padding, past)
    return consecutive(length, past, device) if known_stack else None


def _check_position_ids(position_ids: Tensor) -> Tensor:
    """Refuse fractional and negative `position_ids`; return them as [1 or B, L]."""
    if position_ids.is_floating_point():
        raise ArgumentError(
            f"`position_ids` must be integers, but are {position_ids.dtype}; set real-valued "
            "times with attachment.at(times)."
        )
    if (
        position_ids.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and position_ids.numel()
        and int(position_ids.min()) < 0
    ):
        raise ArgumentError(
            f"`position_ids` must not be negative, but contain {int(position_ids.min())}."
        )
    return position_ids.unsqueeze(0) if position_ids.dim() == 1 else position_ids


def _as_range(index: Tensor) -> IndexRange | None:
    """The same positions [1 or B, L] as a range, if all rows count on from one number. None where
    the answer would need a device synchronisation.
    """
    if index.device.type != "cpu" or torch.compiler.is_compiling() or not index.numel():
        return None
    first, length = int(index[0, 0]), index.shape[1]
    if length == 1:
        return IndexRange(first, 1) if len(index) == 1 or bool((index == first).all()) else None
    counted = torch.arange(first, first + length, dtype=index.dtype)
    return IndexRange(first, length) if bool((index == counted).all()) else None


_ROBERTA_PADDING = 1
"""Id of the padding token where a config has none."""


def _from_table_rows(
    position_ids: Tensor,
    ids: Tensor | None,
    mask: Tensor | None,
    padding: int | None,
    past: int | Tensor,
) -> TokenPositions:
    """Positions from `position_ids` of RoBERTa.

    `generate` passes numbers from 0. All other callers pass rows of RoBERTa's table, which start at
    padding + 1, and any number for padding; so only tokens show which of the two it is.
    """
    padding = _ROBERTA_PADDING if padding is None else padding
    index = _check_position_ids(position_ids)
    is_token = None
    if ids is not None:
        is_token = ids.ne(padding)
    elif mask is not None and mask.shape == index.shape:
        is_token = mask.ne(0)
    below = index <= padding if is_token is None else (index <= padding) & is_token
    from_zero = (isinstance(past, Tensor) or past > 0) or bool(below.any())
    index = index if from_zero else index - padding - 1
    if is_token is not None:
        index = torch.where(is_token, index, 0)
    return TokenPositions(index, None, is_token=is_token)


def _count_non_padding(ids: Tensor, padding: int | None, past: int | Tensor) -> TokenPositions:
    """RoBERTa's positions without its offset: tokens that are not padding, counted from 0."""
    is_token = ids.ne(_ROBERTA_PADDING if padding is None else padding)
    if isinstance(past, Tensor):
        return TokenPositions(_count_tokens(is_token) + past, None, is_token=is_token)
    length = ids.shape[-1]
    return TokenPositions(
        _count_tokens(is_token) + past,
        past + length,
        is_token=is_token,
        shared_range=IndexRange(past, length) if _padded_at_end_only(is_token) else None,
    )


def count_mask(
    mask: Tensor | None, length: int, past: int | Tensor, device: torch.device
) -> TokenPositions:
    """Positions counted from 0 over the tokens that an attention mask [B, past + L] keeps."""
    if mask is None:
        return consecutive(length, past, device)
    if mask.dim() != 2:
        raise ArgumentError(
            'The attention mask must have shape [batch, length] for indices="mask", but has'
            f' {tuple(mask.shape)}; attach with indices="model" instead.'
        )
    is_token, total = mask.ne(0), mask.shape[1]
    shared = IndexRange(total - length, length) if _padded_at_end_only(is_token) else None
    return TokenPositions(
        _count_tokens(is_token)[:, -length:],
        total,
        is_token=is_token[:, -length:],
        shared_range=shared,
    )


def _count_tokens(is_token: Tensor) -> Tensor:
    """Positions [B, L] of tokens, from 0. Those of padding are never used.

    Padding at the end of a row continues the count, so that rows padded there have the same
    positions; other padding has the position of the token before it, or 0.
    """
    at_end = is_token.flip(1).cumsum(1).flip(1).eq(0)
    return ((is_token | at_end).cumsum(1) - 1).clamp(min=0)


def _padded_at_end_only(is_token: Tensor) -> bool:
    """Whether all padding is at the end of rows. False where the answer would need a device
    synchronisation.
    """
    if is_token.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return bool((is_token[:, 1:] <= is_token[:, :-1]).all())
