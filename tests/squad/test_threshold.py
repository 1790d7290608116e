from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.errors import ArgumentError
from floater.tasks.squad.data import SquadSplit
from floater.tasks.squad.metrics import score
from floater.tasks.squad.spans import AnswerSpan, Prediction, texts
from floater.tasks.squad.threshold import tune

from .files import ask

WORDS = "Rollo swore fealty"


def prediction(
    number: int, answer: str | None, span: tuple[int, int] | None, gap: float
) -> Prediction:
    question = ask(f"q{number}", *([] if answer is None else [answer]), context=WORDS)
    return Prediction(question, () if span is None else (AnswerSpan(*span, 1.0),), 1.0 + gap)


CASES = st.tuples(
    st.sampled_from([None, "Rollo", "Rollo swore", WORDS]),
    st.sampled_from([(0, 5), (0, 11), (6, 11), None]),
    st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5, allow_subnormal=False)),
)


@settings(deadline=None)
@given(st.lists(CASES, min_size=1, max_size=12), st.sampled_from(["exact", "f1"]))
def test_no_other_threshold_is_better(
    cases: list[tuple[str | None, tuple[int, int] | None, float]], measure: str
) -> None:
    predictions = [prediction(number, *case) for number, case in enumerate(cases)]
    data = SquadSplit(tuple(item.question for item in predictions), "2.0", "drawn")

    def mean(threshold: float) -> float:
        return float(score(data, texts(predictions, threshold)).summary()[measure])

    best = tune(predictions, measure)  # type: ignore[arg-type]
    gaps = sorted(item.gap for item in predictions if item.spans)
    tried = [-math.inf, math.inf, 0.0, *gaps, *(gap - 1e-3 for gap in gaps)]
    assert math.isfinite(best.value)
    assert best.score == pytest.approx(mean(best.value))
    assert best.score == pytest.approx(max(map(mean, tried)))


def test_exact_match_and_f1_have_different_thresholds() -> None:
    half_right = [prediction(number, WORDS, (0, 11), 1.0) for number in range(3)]
    silent = [prediction(9, None, (0, 5), 1.0)]
    right = [prediction(10, "Rollo", (0, 5), -1.0)]
    assert tune([*half_right, *silent, *right], "exact").value == -1.0
    assert tune([*half_right, *silent, *right], "f1").value == 1.0


def test_of_equally_good_thresholds_the_one_nearest_to_zero_is_taken() -> None:
    predictions = [
        prediction(0, "Rollo", (0, 5), -4.0),
        prediction(1, WORDS, (6, 11), -0.5),
        prediction(2, None, (0, 5), 3.0),
    ]
    assert tune(predictions, "exact").value == -0.5
    assert tune(predictions, "exact").score == pytest.approx(200 / 3)


def test_nothing_is_answered_if_that_scores_best() -> None:
    predictions = [prediction(0, None, (0, 5), -4.0), prediction(1, None, None, 0.0)]
    best = tune(predictions, "f1")
    assert set(texts(predictions, best.value).values()) == {""}
    assert best.score == 100


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"`predictions` must hold at least one, but is empty\.$"
    ):
        tune([], "f1")
    with pytest.raises(ArgumentError, match=r"`measure` must be exact or f1, but is 'bleu'\.$"):
        tune([prediction(0, None, (0, 5), 0.0)], "bleu")  # type: ignore[arg-type]
