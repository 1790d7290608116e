"""The outcome of a paired test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """Two systems on the same examples: the difference other - base, its 95 % interval and the
    p-value of no difference.
    """

    base: float
    other: float
    difference: float
    low: float
    high: float
    p_value: float
    signature: str
