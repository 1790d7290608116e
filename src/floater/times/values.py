"""Times at which encodings are taken, from positions, timestamps or sentence lengths.

All times are float64: at t = 10⁴ the spacing of float32 numbers is 1 % of Δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import TimesError, brief

DELTA = 0.1
"""Δ, the time between two neighbouring tokens of plain text (the paper's value)."""

_ON_GRID = 1e-6  # how far t/Δ may be from an integer, relative to t/Δ


def check_delta(delta: float) -> float:
    """Return Δ if it is a positive finite number, else raise."""
    if not (isinstance(delta, (int, float)) and math.isfinite(delta) and delta > 0):
        raise TimesError(f"`delta` must be a positive finite number, but is {delta!r}.")
    return float(delta)


def check_times(
    times: Tensor | Sequence[float], *, ordered: bool = False, name: str = "times"
) -> Tensor:
    """Return times as a float64 tensor; raise if they are empty, not finite or negative.

    Args:
        times: real numbers of any shape.
        ordered: also raise if they decrease along the last dimension.
        name: what error messages call them.
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
        index = (tensor.diff(dim=-1) < 0).nonzero()[0].tolist()
        before = tensor[tuple(index)].item()
        index[-1] += 1
        after = tensor[tuple(index)].item()
        raise TimesError(
            f"`{name}` must not decrease, but {before:g} is followed by {after:g} at {index}; sort "
            "the events by time."
        )
    return tensor


def as_tensor(values: Tensor | Sequence[float]) -> Tensor:
    """Return a tensor unchanged, and Python's floats as float64, which torch rounds to float32."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TimesError(
            f"`times` must be real numbers, but are {type(values).__name__} ({error})."
        ) from None
    if isinstance(values, Tensor) or not tensor.is_floating_point():
        return tensor
    return torch.as_tensor(values, dtype=torch.float64)


def nearest_positions(times: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Return the integer positions nearest to t/Δ, and for which times t is not a multiple of Δ."""
    exact = times / delta
    nearest = exact.round()
    off_grid = (exact - nearest).abs() > _ON_GRID * exact.abs().clamp(min=1.0)
    return nearest.to(torch.int64), off_grid


def uniform(length: int, delta: float = DELTA, first: int = 0) -> Tensor:
    """Return the times t_i = i·Δ [length] of tokens at positions `first`, `first` + 1, …."""
    check_delta(delta)
    if not isinstance(length, int) or length < 1:
        raise TimesError(f"`length` must be a positive integer, but is {length!r}.")
    if not isinstance(first, int) or first < 0:
        raise TimesError(f"`first` must be an integer ≥ 0, but is {first!r}.")
    return torch.arange(first, first + length, dtype=torch.float64) * delta


def timestamps(
    values: Tensor | Sequence[float], unit: float = 1.0, origin: float | None = None
) -> Tensor:
    """Return the times of events from their timestamps: (value - origin) / unit.

    Args:
        values: timestamps, non-decreasing along the last dimension; Unix seconds are exact in
            float64.
        unit: length of one unit of time in units of the timestamps (3600 converts seconds to
            hours).
        origin: the timestamp of time 0; default: the first value of each row.
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
                f"`timestamps` must not be before origin = {origin:g}, but contain "
                f"{tensor.min().item():g}."
            )
        shifted = tensor - origin
    if tensor.ndim and bool((tensor.diff(dim=-1) < 0).any()):
        return check_times(tensor - tensor.min(), ordered=True, name="timestamps")  # raises
    return shifted / unit


def sentences(lengths: Tensor | Sequence[int], delta: float = DELTA) -> Tensor:
    """Return the times of a document's sentences: Δ times the number of tokens before each.

    A long sentence takes more time than a short one (Appendix C of the paper).

    Args:
        lengths: tokens in each sentence, [..., sentences]; may be 0, as for padding at the end.
        delta: time per token.
    """
    check_delta(delta)
    counts = check_times(lengths, name="lengths")
    if bool((counts != counts.round()).any()):
        raise TimesError("`lengths` must be integers, but contain a fraction.")
    return (counts.cumsum(-1) - counts) * delta
