"""The density of the time to the next event, against torch.distributions and quadrature."""

from __future__ import annotations

import torch
from torch.distributions import Categorical, LogNormal, MixtureSameFamily

from floater.tasks.events.mixture import LogNormalMixture


def mixtures() -> LogNormalMixture:
    random = torch.Generator().manual_seed(0)
    weights, means, scales = torch.randn(3, 5, 4, generator=random, dtype=torch.float64)
    return LogNormalMixture(weights.log_softmax(-1), means, (scales / 2 - 1).exp(), -1.2, 1.7)


def reference(mixture: LogNormalMixture) -> MixtureSameFamily:
    parts = LogNormal(
        mixture.center + mixture.spread * mixture.means, mixture.spread * mixture.scales
    )
    return MixtureSameFamily(Categorical(logits=mixture.log_weights), parts)


def test_density_cdf_and_mean_are_those_of_torch() -> None:
    mixture = mixtures()
    known = reference(mixture)
    for gap in (1e-3, 0.2, 1.0, 30.0):
        gaps = torch.full((5,), gap, dtype=torch.float64)
        torch.testing.assert_close(mixture.log_prob(gaps), known.log_prob(gaps))
        torch.testing.assert_close(mixture.cdf(gaps), known.cdf(gaps))
    torch.testing.assert_close(mixture.mean(), known.mean)


def test_the_density_integrates_to_one_and_half_of_it_is_below_the_median() -> None:
    mixture = mixtures()
    gaps = torch.logspace(-14, 14, 20_001, dtype=torch.float64).unsqueeze(1).expand(-1, 5)
    total = torch.trapezoid(mixture.log_prob(gaps).exp(), gaps, dim=0)
    torch.testing.assert_close(total, torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-4)
    middle = mixture.median()
    torch.testing.assert_close(reference(mixture).cdf(middle), torch.full_like(middle, 0.5))
