"""Learned clocks: monotone maps of time that start as the identity, to the bit."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ArgumentError, TimesError

_START = 0.5413248546129181
"""log(e - 1): softplus of it is 1, and its slope 0.63, so rates can grow and fall equally well."""


def _rate(x: Tensor) -> Tensor:
    """A positive rate, exactly 1 where x = 0, in float64."""
    start = torch.tensor(_START, dtype=torch.float64, device=x.device)
    rate: Tensor = F.softplus(x.to(torch.float64) + start) / F.softplus(start)
    return rate


class LearnedClock(nn.Module, ABC):
    """A learned map of times [batch, length] of tokens."""

    @abstractmethod
    def forward(self, times: Tensor, features: Tensor, is_token: Tensor) -> Tensor:
        """Return the new times [batch, length], float64, differentiable in all that is learned.

        Args:
            times: [batch, length], ≥ 0.
            features: of the tokens, [batch, length, size].
            is_token: which [batch, length] are tokens; the others are padding.
        """


class TimeClock(LearnedClock):
    """t ↦ ∫₀ᵗ r(s) ds, with a rate r > 0 that is linear between equidistant knots.

    r(s) = Σ r_k·hat_k(s), where the hat functions are not negative and add up to 1, and every
    r_k = softplus(a_k + c)/softplus(c) is positive. So r > 0 everywhere, and the map is strictly
    increasing. At the start all a_k are 0, all r_k are exactly 1, and the map is the identity: it
    is computed as t + Σ (r_k - 1)·∫₀ᵗ hat_k. Past the last knot the rate stays.

    Args:
        knots: number of knots.
        span: time of the last knot.
    """

    span: Tensor

    def __init__(self, knots: int, span: float) -> None:
        super().__init__()
        if knots < 2:
            raise ArgumentError(f"`knots` must be at least 2, but is {knots}.")
        if not span > 0:
            raise ArgumentError(f"`span` must be positive, but is {span!r}.")
        self.log_rates = nn.Parameter(torch.zeros(knots))
        self.register_buffer("span", torch.tensor(span, dtype=torch.float64))

    def forward(
        self, times: Tensor, features: Tensor | None = None, is_token: Tensor | None = None
    ) -> Tensor:
        knots = len(self.log_rates)
        width = self.span / (knots - 1)
        number = torch.arange(knots, dtype=torch.float64, device=times.device)
        place = times.to(torch.float64).unsqueeze(-1) / width - number  # in widths, from each knot
        rising = (place.clamp(-1, 0) + 1).square() / 2
        inside = place.clamp(0, 1)
        falling = inside - inside.square() / 2
        last = torch.cat((falling[..., :-1], place[..., -1:].clamp(min=0)), -1)
        area = rising + last
        area = torch.cat((area[..., :1] - 0.5, area[..., 1:]), -1)  # the first hat starts at 0
        return times + width * (area * (_rate(self.log_rates) - 1)).sum(-1)


class FeatureClock(LearnedClock):
    """The time between two tokens is multiplied by a positive function of the later one's features.

    gap_i becomes gap_i·softplus(w·x_i + b)/softplus(c), and times are the sums of the new gaps. At
    the start w = 0 and b = c, so that every factor is exactly 1; the times are computed as
    t_i + Σ_{j ≤ i} gap_j·(factor_j - 1), which is then t_i to the bit.

    Args:
        features: size of a token's features.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, times: Tensor, features: Tensor, is_token: Tensor) -> Tensor:
        times = times.to(torch.float64)
        gaps = torch.diff(times, dim=-1, prepend=times.new_zeros(*times.shape[:-1], 1))
        if bool(((gaps < 0) & is_token).any()):
            raise TimesError(
                "`times` must not decrease from token to token for a clock that is learned from "
                "features, but do; sort the tokens by time."
            )
        factors = _rate(features @ self.weight + self.bias)
        moved = times + (gaps.clamp(min=0) * (factors - 1)).cumsum(-1)
        return torch.where(is_token, moved, times).clamp(min=0)  # below 0 by rounding alone
