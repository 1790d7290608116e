"""Clocks: raw times → times of a model, fixed and learned."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import floater
from floater.errors import ConfigError, DataError, TimesError
from floater.times import FeatureClock, TimeClock


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_clock_shifts_divides_and_scales_in_float64() -> None:
    unix = doubles(1_700_000_000, 1_700_000_060, 1_700_000_060, 1_700_003_600)
    clock = floater.Clock(unit=3600, scale=0.5)
    torch.testing.assert_close(clock.times(unix), doubles(0, 1 / 120, 1 / 120, 0.5))
    from_zero = floater.Clock(unit=60, origin=0.0)
    torch.testing.assert_close(from_zero.times([30.0, 90.0]), doubles(0.5, 1.5))


def test_a_logarithmic_clock_is_log1p_of_the_linear_one() -> None:
    raw = doubles(0, 1, 10, 100_000)
    times = floater.Clock(unit=2.0, log=True, scale=3.0, origin=0.0).times(raw)
    assert times.tolist() == pytest.approx([3 * math.log1p(value / 2) for value in raw.tolist()])


def test_each_row_has_its_own_first_time_also_one_that_is_given() -> None:
    rows = torch.stack((doubles(5, 6, 8), doubles(100, 100, 101)))
    assert floater.Clock().times(rows).tolist() == [[0, 1, 3], [0, 0, 1]]
    assert floater.Clock().times(doubles(7, 9), first=5.0).tolist() == [2, 4]


def test_times_that_a_clock_cannot_have_are_refused() -> None:
    with pytest.raises(TimesError, match="must not be before origin = 10, but contain 9"):
        floater.Clock(origin=10.0).times([9.0, 11.0])
    with pytest.raises(TimesError, match=r"must not decrease, but .* sort the events"):
        floater.Clock().times([1.0, 3.0, 2.0])
    with pytest.raises(TimesError, match="not be before the first one of their sequence"):
        floater.Clock().times([1.0], first=2.0)
    with pytest.raises(ConfigError, match="`unit` of Clock"):
        floater.Clock(unit=0.0)


def test_data_in_another_unit_is_refused() -> None:
    clock = floater.Clock(unit=60, name="minutes")
    clock.check_unit("minutes", "a.parquet")
    clock.check_unit("", "a.csv")
    with pytest.raises(DataError, match=r"a\.parquet must have times in minutes, .* in seconds"):
        clock.check_unit("seconds", "a.parquet")
    with pytest.raises(DataError, match=r"set `clock\.name` to seconds"):
        floater.Clock().check_unit("seconds", "a.parquet")


def test_learned_clocks_start_as_the_identity_to_the_bit() -> None:
    times = (100 * torch.rand(4, 50, dtype=torch.float64)).sort(1).values
    features, mask = torch.randn(4, 50, 8), torch.ones(4, 50, dtype=torch.bool)
    assert torch.equal(TimeClock(16, 30.0)(times, features, mask), times)
    assert torch.equal(FeatureClock(8)(times, features, mask), times)


def test_a_learned_clock_of_time_is_the_integral_of_its_positive_rate() -> None:
    clock = TimeClock(5, 8.0)
    torch.nn.init.normal_(clock.log_rates, std=3.0)
    times = torch.linspace(0, 12, 4801, dtype=torch.float64)
    with torch.no_grad():
        mapped = clock(times)
        rates = torch.nn.functional.softplus(clock.log_rates.double() + math.log(math.e - 1))
    assert bool((mapped.diff() > 0).all())
    assert mapped[0] == 0
    knots = torch.linspace(0, 8, 5, dtype=torch.float64)
    middle = (times[1:] + times[:-1]) / 2
    place = (middle / 2).clamp(max=4 - 1e-12)
    low = place.floor().long()
    expected = rates[low] + (place - low) * (rates[low + 1] - rates[low])
    assert len(knots) == len(rates)
    torch.testing.assert_close(mapped.diff() / times.diff(), expected, rtol=1e-6, atol=1e-9)


def test_a_learned_clock_of_features_multiplies_gaps() -> None:
    clock = FeatureClock(3)
    with torch.no_grad():
        clock.weight.normal_()
        clock.bias.fill_(0.7)
    times = doubles(1, 1, 3, 7, 0).unsqueeze(0)
    mask = torch.tensor([[True, True, True, True, False]])
    features = torch.randn(1, 5, 3)
    moved = clock(times, features, mask)
    start = math.log(math.e - 1)
    total = 0.0
    for number, gap in enumerate((1, 0, 2, 4)):
        x = float((features[0, number] @ clock.weight + clock.bias).detach())
        total += gap * math.log1p(math.exp(x + start)) / math.log1p(math.exp(start))
        assert moved[0, number].item() == pytest.approx(total, rel=1e-6)
    with pytest.raises(TimesError, match="sort the tokens by time"):
        clock(times, features, torch.ones_like(mask))


def test_gradients_of_learned_clocks() -> None:
    clock, other = TimeClock(4, 2.0).double(), FeatureClock(2).double()
    mask = torch.ones(1, 3, dtype=torch.bool)
    times = doubles(0.3, 0.9, 2.6).unsqueeze(0).requires_grad_()
    features = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    rates = torch.randn(4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def by_time(times: Tensor, rates: Tensor) -> Tensor:
        mapped: Tensor = torch.func.functional_call(clock, {"log_rates": rates}, (times,))
        return mapped

    def by_features(times: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        mapped: Tensor = torch.func.functional_call(
            other, {"weight": weight}, (times, features, mask)
        )
        return mapped

    assert torch.autograd.gradcheck(by_time, (times, rates))
    assert torch.autograd.gradcheck(by_features, (times, features, weight))
