from __future__ import annotations

import itertools
import math
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.errors import ArgumentError
from floater.tasks.squad.features import Windows, features
from floater.tasks.squad.spans import AnswerSpan, Prediction, best_spans, predict, texts
from tiny_tokenizers import tiny

from .files import CONTEXT, ask, question_with


def windows_of(*contexts: str) -> Windows:
    asked = [ask(f"q{number}", context=context) for number, context in enumerate(contexts)]
    return features(asked, tiny("roberta"), 30, 8, training=False, max_question=6)


def by_brute_force(
    windows: Windows, start: np.ndarray, end: np.ndarray, longest: int, count: int
) -> list[Prediction]:
    predictions = []
    for owner, question in enumerate(windows.questions):
        spans: dict[tuple[int, int], float] = {}
        null = math.inf
        for number in np.flatnonzero(windows.owner == owner).tolist():
            null = min(null, start[number, 0] + end[number, 0])
            offsets, base = windows.offsets(number).tolist(), int(windows.first[number])
            real = [
                index for index, (low, high) in enumerate(offsets) if low < high
            ]  # a lone space has no characters of its own
            for first, last in itertools.product(real, repeat=2):
                if first <= last < first + longest:
                    characters = (offsets[first][0], offsets[last][1])
                    value = float(start[number, base + first]) + float(end[number, base + last])
                    spans[characters] = max(value, spans.get(characters, -math.inf))
        ranked = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[:count]
        predictions.append(
            Prediction(question, tuple(AnswerSpan(*chars, value) for chars, value in ranked), null)
        )
    return predictions


SMALL = windows_of(CONTEXT, CONTEXT[15:])
EMOJI = windows_of(
    "Zoë 😀😀 swore  fealty 😀\u0301 to 漢字 in 911.", "", "😀"
)  # several tokens share a character


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SMALL, EMOJI]),
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(1, 8),
    st.booleans(),
)
def test_the_search_equals_an_exhaustive_search(
    windows: Windows, seed: int, longest: int, count: int, ties: bool
) -> None:
    draw = np.random.default_rng(seed)
    start, end = draw.normal(size=(2, len(windows), windows.lengths().max() + 3))
    if ties:
        start, end = np.round(start), np.round(end)
    assert predict(windows, start, end, longest=longest, count=count) == by_brute_force(
        windows, start, end, longest, count
    )


def test_the_size_of_search_batches_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = np.random.default_rng(0).normal(size=(2, len(SMALL), SMALL.lengths().max()))
    together = predict(SMALL, start, end)
    monkeypatch.setattr("floater.tasks.squad.spans._BATCH", 2)
    assert len(SMALL) > 4
    assert predict(SMALL, start, end) == together


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12), st.integers(1, 40))
def test_forbidden_tokens_are_never_used(seed: int, tokens: int, longest: int, count: int) -> None:
    draw = np.random.default_rng(seed)
    start, end = (
        np.where(draw.random((3, tokens)) < 0.3, -np.inf, draw.normal(size=(3, tokens)))
        for _ in range(2)
    )
    first, last, scores = best_spans(start, end, longest, count)
    for row in range(3):
        allowed = sorted(
            (
                start[row, i] + end[row, j]
                for i in range(tokens)
                for j in range(i, min(i + longest, tokens))
            ),
            reverse=True,
        )
        finite = [value for value in allowed if math.isfinite(value)][:count]
        real = np.isfinite(scores[row])
        assert scores[row][real].tolist() == finite
        assert (start[row, first[row][real]] + end[row, last[row][real]]).tolist() == finite
        assert all(
            0 <= i <= j < min(i + longest, tokens)
            for i, j in zip(first[row][real], last[row][real], strict=True)
        )


def test_neither_question_nor_padding_nor_special_tokens_can_be_the_answer() -> None:
    start, end = np.random.default_rng(0).normal(size=(2, len(SMALL), SMALL.lengths().max() + 5))
    expected = predict(SMALL, start, end)
    tokens, lengths = np.arange(start.shape[1]), SMALL.lengths()[:, None]
    after = tokens >= lengths - 1
    question = (tokens > 0) & (tokens < SMALL.first[:, None])
    for outside, value in ((after, 1e6), (question, 1e6), (tokens >= lengths, np.nan)):
        spoiled = [np.where(outside, value, logits) for logits in (start, end)]
        assert predict(SMALL, spoiled[0], spoiled[1]) == expected


def test_half_precision_logits_are_added_in_full_precision() -> None:
    start, end = (
        np.random.default_rng(0)
        .normal(size=(2, len(SMALL), SMALL.lengths().max()))
        .astype(np.float16)
        * 100
    )
    assert predict(SMALL, start, end, count=3) == by_brute_force(
        SMALL, start.astype(np.float64), end.astype(np.float64), longest=30, count=3
    )


def test_the_score_of_no_answer_is_the_smallest_over_the_windows() -> None:
    start = np.zeros((len(SMALL), SMALL.lengths().max()))
    start[:, 0] = np.arange(len(SMALL)) - 3.0
    smallest = [start[SMALL.owner == owner, 0].min() for owner in range(2)]
    assert [item.null for item in predict(SMALL, start, np.zeros_like(start))] == smallest


def test_the_threshold_decides_between_the_answer_and_none() -> None:
    asked = question_with("q")
    prediction = Prediction(
        ask("q", context="It was  Rollo. "), (AnswerSpan(7, 13, 2.0), AnswerSpan(0, 6, 1.0)), 2.5
    )
    assert prediction.gap == 0.5
    assert (prediction.text(), prediction.text(0.5), prediction.text(0.49)) == (
        "Rollo",
        "Rollo",
        "",
    )
    assert [prediction.cut(span) for span in prediction.spans] == ["Rollo", "It was"]
    assert texts([prediction], 0.0) == {asked.id: ""}


def test_thousands_of_windows_take_seconds() -> None:
    asked = [ask(str(number), context=CONTEXT * 6) for number in range(1000)]
    windows = features(asked, tiny("roberta"), 384, 128, training=False)
    start, end = np.random.default_rng(0).normal(size=(2, len(windows), 384)).astype(np.float32)
    began = time.process_time()
    predictions = predict(windows, start, end)
    assert time.process_time() - began < 10
    assert len(windows) > 2000
    assert {len(item.spans) for item in predictions} == {20}


@pytest.mark.parametrize(
    ("shape", "value", "changes", "message"),
    [
        (
            (1, 30),
            0.0,
            {},
            (
                r"`start` must be \[\d+ windows, at least 30 tokens\], but is \[1, 30\]; give the"
                r" logits of all windows"
            ),
        ),
        ((len(SMALL), 29), 0.0, {}, r"at least 30 tokens\], but is \[\d+, 29\]"),
        ((len(SMALL),), 0.0, {}, r"but is \[\d+\]"),
        (
            (len(SMALL), 30),
            np.nan,
            {},
            r"`start` must be finite, but is not for question q0; did the training diverge\?$",
        ),
        ((len(SMALL), 30), 0.0, {"longest": 0}, r"`longest` must be ≥ 1, but is 0\.$"),
        ((len(SMALL), 30), 0.0, {"count": 0}, r"`count` must be ≥ 1, but is 0\.$"),
    ],
)
def test_invalid_arguments_are_refused(
    shape: tuple[int, ...], value: float, changes: dict[str, int], message: str
) -> None:
    logits = np.full(shape, value)
    with pytest.raises(ArgumentError) as caught:
        predict(SMALL, logits, logits, **changes)
    assert re.search(message, str(caught.value))
