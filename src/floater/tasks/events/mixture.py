"""A mixture of log-normal densities: how long until the next event."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALVINGS = 40  # of the interval that holds a median
_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class LogNormalMixture:
    """Densities of gaps g > 0, of which x = (log g - center)/spread is a mixture of normals.

    Attributes:
        log_weights: logarithms of the weights of the components [..., components].
        means, scales: of their normal densities, in x [..., components].
        center, spread: how gaps are standardised.
    """

    log_weights: Tensor
    means: Tensor
    scales: Tensor
    center: float = 0.0
    spread: float = 1.0

    def log_prob_standard(self, x: Tensor) -> Tensor:
        """Logarithm of the density of x [...]."""
        distance = (x.unsqueeze(-1) - self.means) / self.scales
        parts = self.log_weights - 0.5 * distance.square() - self.scales.log() - _LOG_ROOT
        return parts.logsumexp(-1)

    def log_prob(self, gaps: Tensor) -> Tensor:
        """Logarithm of the density of gaps [...], per unit of the gaps."""
        logs = gaps.log()
        x = (logs - self.center) / self.spread
        return self.log_prob_standard(x) - math.log(self.spread) - logs

    def cdf(self, gaps: Tensor) -> Tensor:
        """Probability of a gap of at most this length [...]."""
        return self._cdf((gaps.log() - self.center) / self.spread)

    def _cdf(self, x: Tensor) -> Tensor:
        below = torch.special.ndtr((x.unsqueeze(-1) - self.means) / self.scales)
        total: Tensor = (self.log_weights.exp() * below).sum(-1)
        return total

    def mean(self) -> Tensor:
        """Expected gap [...]."""
        logs = self.center + self.spread * self.means + 0.5 * (self.spread * self.scales).square()
        return (self.log_weights + logs).logsumexp(-1).exp()

    def median(self) -> Tensor:
        """Median gap [...], by bisection: it lies between the medians of the components."""
        low, high = self.means.amin(-1), self.means.amax(-1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = self._cdf(middle) < 0.5
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return (self.center + self.spread * (low + high) / 2).exp()
