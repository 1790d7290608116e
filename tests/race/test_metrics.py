from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from floater.errors import ArgumentError
from floater.tasks.race.data import LEVELS, RaceQuestion
from floater.tasks.race.metrics import accuracy, choose


def drawn(count: int) -> tuple[list[RaceQuestion], np.ndarray]:
    draw = np.random.default_rng(0)
    questions = [
        RaceQuestion(
            f"q{number}",
            LEVELS[int(draw.random() < 0.7)],
            "",
            "",
            ("a", "b", "c", "d"),
            int(draw.integers(4)),
        )
        for number in range(count)
    ]
    return questions, draw.normal(size=(count, 4))


def test_accuracy_is_that_of_scikit_learn_overall_and_by_level() -> None:
    questions, logits = drawn(300)
    result = accuracy(questions, choose(logits))
    right, levels = (
        np.array([question.answer for question in questions]),
        np.array([question.level for question in questions]),
    )
    summary = result.summary()
    assert summary["accuracy"] == pytest.approx(100 * accuracy_score(right, logits.argmax(1)))
    for level in LEVELS:
        rows = levels == level
        assert summary[level] == pytest.approx(
            100 * accuracy_score(right[rows], logits[rows].argmax(1))
        )
        assert summary[f"{level}_total"] == rows.sum() > 50
    assert summary["middle"] != summary["high"]
    assert result.correct.tolist() == (right == logits.argmax(1)).tolist()


def test_a_level_without_questions_has_no_accuracy() -> None:
    questions = [RaceQuestion("q", "high", "", "", ("a", "b", "c", "d"), 2)]
    assert accuracy(questions, np.array([2])).summary() == {
        "accuracy": 100,
        "total": 1,
        "high": 100,
        "high_total": 1,
    }


def test_invalid_arguments_are_refused() -> None:
    questions, logits = drawn(5)
    with pytest.raises(
        ArgumentError, match=r"`logits` must be \[questions, 4\], but is \[5, 3\]\.$"
    ):
        choose(logits[:, :3])
    with pytest.raises(ArgumentError, match=r"`logits` must be finite, but are not"):
        choose(np.where(logits == logits.max(), np.nan, logits))
    with pytest.raises(
        ArgumentError,
        match=r"`chosen` must hold one option for each of 5 questions, but is \[4\]\.$",
    ):
        accuracy(questions, np.zeros(4, dtype=int))
