"""Inputs past the times that an attachment was trained on: extrapolate, compress or refuse."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..encoders import (
    EncoderConfig,
    LearnedConfig,
    NoPositionConfig,
    RecurrentConfig,
    RelativeConfig,
)
from ..errors import ArgumentError
from .token_positions import IndexRange, TokenPositions

Beyond = Literal["extrapolate", "compress", "error"]
"""What happens to inputs past the trained range: their tokens stay where they are, they are put
closer together until they lie within the range, or there is an error.
"""
BEYOND: tuple[Beyond, ...] = ("extrapolate", "compress", "error")
_ROUNDING = 1 + 3e-7
"""How far times may lie past the range: as much as float32 rounds times that a caller set."""


def check_beyond(beyond: object, config: EncoderConfig, rotary: bool) -> Beyond:
    """The setting if the encoders of an attachment can do it, else raise."""
    for known in BEYOND:
        if known == beyond:
            break
    else:
        names = ", ".join(map(repr, BEYOND))
        raise ArgumentError(f"`beyond` must be one of {names}, but is {beyond!r}.")
    if known == "compress" and not can_compress(config, rotary):
        raise ArgumentError(
            '`beyond` can be "compress" for encoders that serve any time (flow, sinusoidal, '
            f"fourier or rotary), but the attachment has a {type(config).__name__}."
        )
    return known


def can_compress(config: EncoderConfig, rotary: bool) -> bool:
    """Whether the encoders of an attachment serve any time."""
    if isinstance(config, NoPositionConfig):
        return rotary
    return not isinstance(config, LearnedConfig | RecurrentConfig | RelativeConfig)


def token_mask(
    positions: TokenPositions, mask: Any, ids: Tensor | None, padding: int | None
) -> Tensor | None:
    """Which [B, L] of the tokens that enter a stack are not padding; None for all.

    Args:
        positions: their positions.
        mask: the attention mask of the stack.
        ids: the tokens, where only they can tell: those of the decoder of an encoder-decoder, whose
            padding at the end has no effect and often no mask.
        padding: id of the padding token.
    """
    if positions.is_token is not None:
        return positions.is_token
    length = positions.length
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= length:
        past = positions.index.first if isinstance(positions.index, IndexRange) else None
        if mask.shape[1] == length or past != 0:  # of a cache, the mask comes first
            return mask[:, -length:].ne(0)
    if mask is None and ids is not None and ids.dim() == 2 and padding is not None:
        return ids.ne(padding)
    return None


def last_times(positions: TokenPositions, is_token: Tensor | None, delta: float) -> float | Tensor:
    """The largest time of a token, where all rows agree and no tensor is needed; otherwise that of
    each row [1 or B], float64.
    """
    index, times = positions.index, positions.times
    if isinstance(index, IndexRange):
        if is_token is None and times is None and not torch.compiler.is_compiling():
            return (index.first + index.length - 1) * delta
        device = torch.device("cpu") if is_token is None else is_token.device
        index = index.tensor(device).unsqueeze(0)
    if index.device.type == "mps":  # has no float64
        index = index.cpu()
    at = index.to(torch.float64) * delta if times is None else times[index]
    if is_token is None:
        return at.amax(1)
    if at.device != is_token.device:
        if is_token.device.type == "mps":
            is_token = is_token.cpu()
        at = at.to(is_token.device, non_blocking=True)
    return torch.where(is_token, at, 0.0).amax(1)


def largest(last: float | Tensor) -> float:
    """The largest of the times of the rows."""
    return float(last.amax()) if isinstance(last, Tensor) else last


def surely_within(positions: TokenPositions, limit: float, delta: float) -> bool:
    """Whether all positions, those of padding included, are known to lie within a range without a
    look at tensors.
    """
    return (
        positions.times is None
        and positions.bound is not None
        and (positions.bound - 1) * delta <= limit
    )


def is_past(time: float, limit: float) -> bool:
    """Whether a time lies past a range."""
    return time > limit * _ROUNDING


def compression(last: float | Tensor, limit: float) -> Tensor:
    """By how much the times of each row [1 or B] are multiplied so that they lie within a range;
    1 for rows that do already. On the CPU.
    """
    times = torch.as_tensor(last, dtype=torch.float64, device="cpu").reshape(-1)
    return torch.where(times > limit, limit / times, 1.0)


def compressed(positions: TokenPositions, factors: Tensor, delta: float) -> TokenPositions:
    """The same tokens at compressed times.

    Args:
        positions: tokens at index·Δ.
        factors: what the times of each row are multiplied by [1 or B].
        delta: Δ.
    """
    index = positions.index
    if isinstance(index, IndexRange):
        index = index.tensor(torch.device("cpu")).unsqueeze(0)
    times = index.cpu().to(torch.float64) * delta * factors.unsqueeze(1)
    # each time once and in order, as in a table: then rows within the range keep their bits
    unique, rows = torch.unique(times, return_inverse=True)
    return TokenPositions(rows, None, unique, positions.is_token)


def describe_excess(what: str, time: float, limit: float, delta: float) -> str:
    """The beginning of a message: what was used, and what was trained.

    Args:
        what: "An input", or which of two.
        time: the largest time of the input.
        limit: the largest time in training.
        delta: Δ.
    """

    def tokens(value: float) -> str:
        return f"{round(value / delta) + 1:,}"

    return (
        f"{what} of {tokens(time)} tokens (times up to {time:g}) lies past the range of training "
        f"(times up to {limit:g}, those of {tokens(limit)} tokens)"
    )
