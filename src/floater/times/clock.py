"""`Clock`: raw times (minutes, Unix seconds, …) → times t ≥ 0 of a model, as settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..config import Config, Positive
from ..errors import DataError, TimesError
from .learned import FeatureClock, LearnedClock, TimeClock
from .values import as_tensor, timestamps

KNOTS = 16
"""Knots of a learned clock of time alone."""


class Clock(Config):
    """How raw times become times of a model: t = scale·(raw - origin)/unit.

    With `log`, t = scale·log(1 + (raw - origin)/unit). All of it is float64. A run saves its clock,
    and data that states another unit than `name` is refused.
    """

    unit: Positive = 1.0
    """How many units of the raw times make one unit of time; 60 turns minutes into hours."""
    name: str = ""
    """Name of the unit of the raw times, such as minutes."""
    origin: Literal["first"] | Annotated[float, Field(allow_inf_nan=False)] = "first"
    """The raw time of t = 0: a number, or the first time of each sequence."""
    log: bool = False
    """Count time on a logarithmic scale, for times that span several orders of magnitude."""
    scale: Positive = 1.0
    """Factor of t. Encoders expect about Δ = 0.1 between neighbouring tokens."""
    learned: Literal["time", "features"] | None = None
    """A learned map on top of it, which starts as the identity: a monotone function of time alone,
    or one in which the time between two tokens is a positive function of the later one's features.
    """
    span: Positive | None = None
    """With `learned: time`: the time up to which the rate can change. Default: the largest time of
    the training data.
    """

    def times(self, raw: Tensor | Sequence[float], first: Tensor | float | None = None) -> Tensor:
        """Return the times t ≥ 0 of raw times, float64, of the same shape.

        Args:
            raw: non-decreasing along the last dimension; times may repeat.
            first: with `origin: first`, the first time of each sequence where `raw` does not start
                with it; of a shape that broadcasts to that of `raw`.
        """
        values = as_tensor(raw)
        if self.origin == "first" and first is not None:
            values = values.to(torch.float64) - torch.as_tensor(first, dtype=torch.float64)
            if values.numel() and bool((values < 0).any()):
                raise TimesError(
                    "`raw` times must not be before the first one of their sequence, but one is "
                    f"{-values.min().item():g} before it."
                )
            since = timestamps(values, self.unit, 0.0)
        else:
            since = timestamps(values, self.unit, None if self.origin == "first" else self.origin)
        return self.scale * (torch.log1p(since) if self.log else since)

    def start(self, first: Any) -> Any:
        """Return the raw time of t = 0 of sequences whose first raw times are `first`."""
        return first if self.origin == "first" else self.origin

    def check_unit(self, stated: str, where: str) -> None:
        """Raise unless the unit that data states is that of this clock.

        Args:
            stated: name of the unit; empty if the data states none.
            where: name of the data, for the message.
        """
        if not stated or stated == self.name:
            return
        if not self.name:
            raise DataError(
                f"{where} states that its times are in {stated}, but the clock has no unit; set "
                f"`clock.name` to {stated}."
            )
        raise DataError(
            f"{where} must have times in {self.name}, the unit of the clock, but states that they "
            f"are in {stated}; convert them."
        )

    def build(self, features: int, span: float) -> LearnedClock | None:
        """Return the learned part of the clock; None if there is none.

        Args:
            features: size of a token's features.
            span: the largest time of the training data.
        """
        if self.learned == "features":
            return FeatureClock(features)
        return TimeClock(KNOTS, self.span or span) if self.learned == "time" else None
