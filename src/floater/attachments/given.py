"""Times that a caller sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ArgumentError
from ..times import check_times


@dataclass(frozen=True)
class Given:
    """Times that a caller set with `at`: float64 [1 or B, T]."""

    target: Tensor | None
    source: Tensor | None


def as_rows(times: Any, name: str) -> Tensor | None:
    """Times as a caller gave them, checked, as float64 [1 or B, T]."""
    if times is None:
        return None
    if isinstance(times, Tensor) and times.requires_grad:
        raise ArgumentError(
            f"`{name}` must not require gradients, but do; call attachment.encoder(times) where "
            "times are to be learned."
        )
    checked = check_times(times, name=name)
    if checked.dim() > 2 or checked.dim() == 0:
        raise ArgumentError(
            f"`{name}` must have shape [length] or [batch, length], but has {tuple(checked.shape)}."
        )
    return checked.unsqueeze(0) if checked.dim() == 1 else checked
