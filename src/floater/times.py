"""Clocks: from an index, timestamps or sentence lengths to the times at which encodings are taken.

All times are float64: at t = 10⁴ the spacing of float32 is 1 % of Δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import TimesError, brief

DELTA = 0.1
"""Δ, the time between two neighbouring tokens of plain text (the paper's value)."""


def check_delta(delta: float) -> float:
    """Return Δ if it is a positive finite number, else raise."""
    if not (isinstance(delta, (int, float)) and math.isfinite(delta) and delta > 0):
        raise TimesError(f"`delta` must be a positive finite number, but is {delta!r}.")
    return float(delta)


def check_times(
    times: Tensor | Sequence[float], *, ordered: bool = False, name: str = "times"
) -> Tensor:
    """Times as a float64 tensor, after checking that they are not empty, finite and not negative.

    Args:
        times: real numbers of any shape.
        ordered: also demand that they do not decrease along the last dimension.
        name: how error messages call them.
    """
    tensor = as_tensor(times)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TimesError(f"`{name}` must be real numbers, but are {tensor.dtype}.")
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    tensor = tensor.to(torch.float64)
    if tensor.numel() == 0:
        raise TimesError(f"`{name}` must not be empty, but have shape {tuple(tensor.shape)}.")
    if not bool(torch.isfinite(tensor).all()):
        raise TimesError(
            f"`{name}` must be finite, but contain {tensor[~torch.isfinite(tensor)][0].item()}."
        )
    if bool((tensor < 0).any()):
        raise TimesError(f"`{name}` must not be negative, but contain {tensor.min().item():g}.")
    if ordered and tensor.ndim and bool((tensor.diff(dim=-1) < 0).any()):
        place = (tensor.diff(dim=-1) < 0).nonzero()[0].tolist()
        before = tensor[tuple(place)].item()
        place[-1] += 1
        after = tensor[tuple(place)].item()
        raise TimesError(
            f"`{name}` must not decrease, but {before:g} is followed by {after:g} at {place}; sort "
            "the events by time."
        )
    return tensor


def as_tensor(values: Tensor | Sequence[float]) -> Tensor:
    """A tensor as it is; anything else in float64, where torch by itself would round Python's
    numbers to float32.
    """
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TimesError(
            f"`times` must be real numbers, but are {type(values).__name__} ({error})."
        ) from None
    if isinstance(values, Tensor) or not tensor.is_floating_point():
        return tensor
    return torch.as_tensor(values, dtype=torch.float64)


def uniform(length: int, delta: float = DELTA, first: int = 0) -> Tensor:
    """Times t_i = i·Δ of `length` tokens, the first of them at index `first`. Shape [length]."""
    check_delta(delta)
    if not isinstance(length, int) or length < 1:
        raise TimesError(f"`length` must be a positive whole number, but is {length!r}.")
    if not isinstance(first, int) or first < 0:
        raise TimesError(f"`first` must be a whole number ≥ 0, but is {first!r}.")
    return torch.arange(first, first + length, dtype=torch.float64) * delta


def timestamps(
    values: Tensor | Sequence[float], unit: float = 1.0, origin: float | None = None
) -> Tensor:
    """Times of events from their timestamps: (value - origin) / unit.

    Args:
        values: timestamps, not decreasing along the last dimension; float64 keeps Unix seconds
            exact.
        unit: how much of the timestamps' unit makes one unit of time (3600 turns seconds into
            hours).
        origin: the timestamp of time 0; the first value of each row unless given.
    """
    if not (isinstance(unit, (int, float)) and math.isfinite(unit) and unit > 0):
        raise TimesError(f"`unit` must be a positive finite number, but is {unit!r}.")
    tensor = as_tensor(values)
    tensor = tensor.to(torch.float64) if not tensor.is_complex() else tensor
    if tensor.numel() == 0 or tensor.is_complex() or not bool(torch.isfinite(tensor).all()):
        return check_times(tensor, name="timestamps")  # raises
    if origin is None:
        shifted = tensor - (tensor[..., :1] if tensor.ndim else tensor)
    else:
        try:
            finite = math.isfinite(origin)
        except (TypeError, ValueError, RuntimeError):  # text, or a tensor of several numbers
            finite = False
        if not finite:
            raise TimesError(f"`origin` must be a finite number, but is {brief(origin)}.")
        if bool((tensor < origin).any()):
            raise TimesError(
                f"`timestamps` must not lie before origin = {origin:g}, but contain "
                f"{tensor.min().item():g}."
            )
        shifted = tensor - origin
    falls = tensor.diff(dim=-1) < 0 if tensor.ndim else torch.zeros(0, dtype=torch.bool)
    if bool(falls.any()):
        return check_times(tensor - tensor.min(), ordered=True, name="timestamps")  # raises
    return shifted / unit


def sentences(lengths: Tensor | Sequence[int], delta: float = DELTA) -> Tensor:
    """Times of the sentences of a document: Δ times the number of tokens before each of them.

    A long sentence takes the clock further than a short one (Appendix C of the paper).

    Args:
        lengths: tokens in each sentence, [..., sentences]; 0 is allowed, as padding at the end is.
        delta: time per token.
    """
    check_delta(delta)
    counts = check_times(lengths, name="lengths")
    if bool((counts != counts.round()).any()):
        raise TimesError("`lengths` must be whole numbers of tokens, but contain a fraction.")
    return (counts.cumsum(-1) - counts) * delta
