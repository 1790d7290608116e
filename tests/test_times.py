from __future__ import annotations

import math

import pytest
import torch

from floater import times
from floater.errors import FloaterError, TimesError


def test_uniform_clock_counts_from_zero_in_float64() -> None:
    clock = times.uniform(5)
    assert clock.dtype == torch.float64
    torch.testing.assert_close(clock, torch.tensor([0, 0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
    torch.testing.assert_close(
        times.uniform(2, delta=0.5, first=7), torch.tensor([3.5, 4.0], dtype=torch.float64)
    )


def test_uniform_clock_is_still_exact_where_float32_is_not() -> None:
    clock = times.uniform(100_001)
    assert clock[-1].item() == pytest.approx(10_000, abs=1e-9)
    assert clock.float().diff().std() > 1e-5 > clock.diff().std()


def test_timestamps_start_at_zero_and_scale() -> None:
    seconds = [1_700_000_000.0, 1_700_000_060.0, 1_700_000_060.0, 1_700_003_600.0]
    hours = times.timestamps(seconds, unit=3600)
    torch.testing.assert_close(hours, torch.tensor([0, 1 / 60, 1 / 60, 1], dtype=torch.float64))
    torch.testing.assert_close(
        times.timestamps([5, 6], origin=4.0), torch.tensor([1.0, 2.0], dtype=torch.float64)
    )
    rows = times.timestamps(torch.tensor([[10, 12], [3, 9]]))
    assert rows.tolist() == [[0, 2], [0, 6]]


def test_sentence_clock_moves_by_the_length_of_what_came_before() -> None:
    clock = times.sentences([10, 3, 0, 7], delta=0.1)
    torch.testing.assert_close(clock, torch.tensor([0, 1.0, 1.3, 1.3], dtype=torch.float64))
    assert times.sentences(torch.tensor([[2, 2], [5, 1]]), delta=1.0).tolist() == [[0, 2], [0, 5]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: times.uniform(0), r"`length` must be a positive integer, but is 0"),
        (lambda: times.uniform(3, first=-1), r"`first` must be an integer ≥ 0, but is -1"),
        (
            lambda: times.uniform(3, delta=0.0),
            r"`delta` must be a positive finite number, but is 0.0",
        ),
        (
            lambda: times.uniform(3, delta=math.nan),
            r"`delta` must be a positive finite number, but is nan",
        ),
        (lambda: times.check_times([]), r"`times` must not be empty, but have shape \(0,\)"),
        (lambda: times.check_times([0.0, math.nan]), r"`times` must be finite, but contain nan"),
        (lambda: times.check_times([0.0, math.inf]), r"`times` must be finite, but contain inf"),
        (lambda: times.check_times([0.0, -2.0]), r"`times` must not be negative, but contain -2"),
        (lambda: times.check_times([True]), r"`times` must be real numbers, but are torch.bool"),
        (
            lambda: times.check_times([0.0, 2.0, 1.0], ordered=True),
            r"2 is followed by 1 at \[2\]; sort the events",
        ),
        (lambda: times.timestamps([]), r"`timestamps` must not be empty"),
        (
            lambda: times.timestamps([1.0, math.nan]),
            r"`timestamps` must be finite, but contain nan",
        ),
        (
            lambda: times.timestamps(torch.tensor([[1.0, 2.0], [9.0, 8.0]])),
            r"`timestamps` must not decrease, but 8 is .* by 7 at \[1, 1\]",
        ),
        (
            lambda: times.timestamps([1.0], unit=0),
            r"`unit` must be a positive finite number, but is 0",
        ),
        (
            lambda: times.timestamps([1.0], origin=2.0),
            r"must not be before origin = 2, but contain 1",
        ),
        (
            lambda: times.timestamps([1.0], origin=math.inf),
            r"`origin` must be a finite number, but is inf",
        ),
        (
            lambda: times.timestamps([1.0], origin="now"),  # type: ignore[arg-type]
            r"`origin` must be a finite number, but is 'now'",
        ),
        (
            lambda: times.timestamps([1.0], origin=torch.ones(2)),  # type: ignore[arg-type]
            r"`origin` must be .* is tensor\(",
        ),
        (lambda: times.sentences([3, -1]), r"`lengths` must not be negative, but contain -1"),
        (
            lambda: times.sentences(torch.tensor([2.5])),
            r"`lengths` must be integers, but contain a fraction",
        ),
        (lambda: times.sentences([]), r"`lengths` must not be empty"),
    ],
)
def test_mistakes_are_named(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TimesError, match=message) as caught:
        call()
    assert isinstance(caught.value, FloaterError)
