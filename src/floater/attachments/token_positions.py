"""The index of every token, as its base model counts, found at the entry of a stack."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from .layouts import Rule


@dataclass(frozen=True)
class Span:
    """The same consecutive positions for every row: first, first + 1, …."""

    first: int
    length: int


Index = Span | Tensor
"""Positions: a span, or whole numbers [1 or B, L]."""


@dataclass(frozen=True)
class Places:
    """Positions of the tokens of one forward, and a bound they all lie below (None if only the
    numbers themselves tell).
    """

    index: Index
    bound: int | None
    times: Tensor | None = None
    """Real-valued times [T] that the index points into; without them, position i stands at i·Δ."""
    real: Tensor | None = None
    """Which [B, L] are tokens, where others are padding."""
    span: Span | None = None
    """The same as the index, where it is known that all rows agree; cheaper to look up."""

    def needed(self) -> int:
        """Length of the table that serves them."""
        if self.bound is not None:
            return self.bound
        assert isinstance(self.index, Tensor)
        lowest, highest = map(int, self.index.aminmax())
        if lowest < 0:
            raise ArgumentError(f"`position_ids` must not be negative, but contain {lowest}.")
        return highest + 1

    def count(self) -> int:
        """How many are looked up, at most."""
        return self.index.length if isinstance(self.index, Span) else self.index.numel()

    def sparse(self, delta: float) -> Places:
        """The same, with the times of these positions alone."""
        assert isinstance(self.index, Tensor)
        unique, index = torch.unique(self.index, return_inverse=True)
        return Places(index, None, unique.cpu().to(torch.float64) * delta)

    def reached(self) -> int:
        """Length of the table that serves all but padding."""
        if isinstance(self.index, Span):
            return self.index.first + self.index.length
        return int((self.index if self.real is None else self.index * self.real).max()) + 1


class Arguments:
    """Arguments of a module's forward, by name, however they were passed."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
        self._names = [
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]

    @property
    def first(self) -> str:
        """Name of the first argument."""
        return self._names[0]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments that were passed."""
        return {**dict(zip(self._names, args, strict=False)), **kwargs}


def span(length: int, past: int | Tensor, device: torch.device) -> Places:
    """Consecutive positions after `past` earlier ones."""
    if isinstance(past, Tensor):
        if torch.compiler.is_compiling():
            return Places((torch.arange(length, device=device) + past).unsqueeze(0), None)
        past = int(past)
    return Places(Span(past, length), past + length)


def past_length(given: dict[str, Any]) -> int | Tensor:
    """Number of tokens that the cache already holds."""
    cache = given.get("past_key_values")
    if cache is None:
        return 0
    length: int | Tensor = cache.get_seq_length()
    return length


def places(
    rule: Rule, given: dict[str, Any], padding: int | None, by_mask: bool, *, sure: bool = True
) -> Places | None:
    """Positions of the tokens that enter a stack, or None where only its blocks know how many there
    are.

    Args:
        rule: how the model counts.
        given: arguments of the stack's forward.
        padding: id of padding.
        by_mask: count the attention mask instead.
        sure: whether the blocks are known to see the tokens of `input_ids`; they may be a
            decoder's, where an architecture is not.
    """
    ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
    source = ids if ids is not None else embeds
    if rule == "whole" or source is None:
        return None
    length, device = (source.shape[-1] if ids is not None else source.shape[1]), source.device
    past = past_length(given)
    if by_mask:
        return masked(given.get("attention_mask"), length, past, device)
    position_ids = given.get("position_ids")
    if rule == "given" and position_ids is not None:
        return Places(_rows(position_ids), None)
    if rule == "padding":
        return _by_padding(
            ids, given.get("attention_mask"), position_ids, padding, length, past, device
        )
    return span(length, past, device) if sure else None


def _rows(position_ids: Tensor) -> Tensor:
    if position_ids.is_floating_point():
        raise ArgumentError(
            f"`position_ids` must be whole numbers, but are {position_ids.dtype}; set real-valued "
            "times with attachment.at(times)."
        )
    if (
        position_ids.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and bool((position_ids < 0).any())
    ):
        raise ArgumentError(
            f"`position_ids` must not be negative, but contain {int(position_ids.min())}."
        )
    return position_ids.unsqueeze(0) if position_ids.dim() == 1 else position_ids


def _by_padding(
    ids: Tensor | None,
    mask: Tensor | None,
    position_ids: Tensor | None,
    padding: int | None,
    length: int,
    past: int | Tensor,
    device: torch.device,
) -> Places:
    """RoBERTa's count, less its offset: tokens that are not padding, from 0."""
    padding = 1 if padding is None else padding
    if position_ids is not None:
        # `generate` passes numbers from 0; everybody else passes rows of RoBERTa's table, from
        # padding + 1, and for padding whatever they like: only tokens tell.
        index = _rows(position_ids)
        token = (
            ids.ne(padding)
            if ids is not None
            else mask.ne(0)
            if mask is not None and mask.shape == index.shape
            else None
        )
        below = index <= padding if token is None else (index <= padding) & token
        from_zero = (isinstance(past, Tensor) or past > 0) or bool(below.any())
        index = index if from_zero else index - padding - 1
        return Places(index if token is None else torch.where(token, index, 0), None, real=token)
    if ids is None:
        return span(length, past, device)
    real = ids.ne(padding)
    if isinstance(past, Tensor):
        return Places(_counted(real) + past, None, real=real)
    return Places(
        _counted(real) + past,
        past + length,
        real=real,
        span=Span(past, length) if _only_behind(real) else None,
    )


def masked(mask: Tensor | None, length: int, past: int | Tensor, device: torch.device) -> Places:
    """The count of what an attention mask [B, past + L] lets through, from 0."""
    if mask is None:
        return span(length, past, device)
    if mask.dim() != 2:
        raise ArgumentError(
            "Counting by the attention mask needs a mask [batch, length], but it has shape"
            f' {tuple(mask.shape)}; attach with indices="model" instead.'
        )
    real, whole = mask.ne(0), mask.shape[1]
    same = Span(whole - length, length) if _only_behind(real) else None
    return Places(_counted(real)[:, -length:], whole, real=real[:, -length:], span=same)


def _counted(real: Tensor) -> Tensor:
    """Positions [B, L] of tokens, from 0, the others being padding, which is never looked at.

    Behind the tokens it goes on counting, so that batches padded there have the same positions in
    all rows; elsewhere it has the position of the token before it, or 0.
    """
    behind = real.flip(1).cumsum(1).flip(1).eq(0)
    return ((real | behind).cumsum(1) - 1).clamp(min=0)


def _only_behind(real: Tensor) -> bool:
    """Whether there is no padding but behind the tokens of a row.

    Not asked where one would have to wait for the answer.
    """
    if real.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return bool((real[:, 1:] <= real[:, :-1]).all())
