from __future__ import annotations

import random

import pytest
from torchmetrics.functional.text import squad as reference

from floater.errors import DataError
from floater.tasks.squad.data import SquadQuestion, SquadSplit, Version
from floater.tasks.squad.metrics import f1, judge, normalise, score

from .files import question_with


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Cat.", "cat"),
        ("an apple, a day", "apple day"),
        ("theatre and another", "theatre and another"),  # articles are whole words
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),  # punctuation is removed before splitting
        ("A-Team", "ateam"),
        ("l'École — “Polytechnique”", "lécole — “polytechnique”"),  # only ASCII punctuation goes
        ("ÉCOLE", "école"),
        ("$5\u00a0million\n", "5 million"),
        ("the", ""),
        ("?!", ""),
    ],
)
def test_normalisation(text: str, left: str) -> None:
    assert normalise(text) == left


@pytest.mark.parametrize(
    ("text", "answers", "exact", "expected"),
    [
        ("the Denver Broncos!", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall ½
        (
            "Broncos of Denver",
            ["Denver Broncos"],
            0,
            0.8,
        ),  # order does not matter; precision ⅔, recall 1
        ("a b b", ["b b c"], 0, 0.8),  # "a" is an article
        ("x b b", ["b b c"], 0, 2 / 3),
        ("b b b", ["b"], 0, 0.5),  # a word counts as often as it occurs: precision ⅓, recall 1
        ("b", ["b b b"], 0, 0.5),
        ("1999", ["in 1998", "1999", "the year 1999"], 1, 1),  # the best-fitting of several answers
        ("year 1999 or so", ["1999", "the year 1999"], 0, 2 / 3),
        ("", ["Rollo"], 0, 0),
        ("Zoë", ["Zoe"], 0, 0),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_scores_by_hand(
    version: Version, text: str, answers: list[str], exact: float, expected: float
) -> None:
    assert judge(question_with("q", *answers), text, version) == pytest.approx((exact, expected))


def test_no_answer_is_scored_like_a_word() -> None:
    assert judge(question_with("q"), "", "2.0") == (1, 1)
    assert judge(question_with("q"), "the", "2.0") == (1, 1)  # empty after normalisation
    assert judge(question_with("q"), "Rollo", "2.0") == (0, 0)
    assert judge(question_with("q", "Rollo", "the"), "", "2.0") == (
        0,
        0,
    )  # answers of which nothing is left do not count …
    assert judge(question_with("q", "the"), "", "2.0") == (1, 1)  # … unless there is no other


def test_the_versions_differ_for_texts_that_normalise_to_nothing() -> None:
    assert f1("the", "a", "1.1") == 0
    assert f1("the", "a", "2.0") == 1
    assert judge(question_with("q", "the", "Rollo"), "a", "1.1") == (1, 0)


def drawn(count: int) -> tuple[list[SquadQuestion], dict[str, str]]:
    draw = random.Random(3)
    words = [
        "the",
        "a",
        "an",
        "Rollo",
        "rollo",
        "fealty,",
        "“King”",
        "É",
        "é",
        "911",
        "9-11",
        "U.S.",
        "US",
        "–",
        "\u00a0",
        "-",
    ]

    def text() -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, 4)))

    questions = [
        question_with(str(number), *(text() for _ in range(draw.randint(1, 4))))
        for number in range(count)
    ]
    return questions, {
        question.id: draw.choice((text(), question.answers[0].text.upper(), ""))
        for question in questions
    }


def test_scores_are_those_of_torchmetrics() -> None:
    """But where nothing is left of an answer: torchmetrics follows version 2.0 in F1 and 1.1 in
    which answers count.
    """
    questions, answers = drawn(400)
    questions_left = tuple(
        item for item in questions if all(normalise(answer.text) for answer in item.answers)
    )
    assert len(questions_left) > 200
    for version in ("1.1", "2.0"):
        scores = score(SquadSplit(questions_left, version, "drawn"), answers)
        for number, item in enumerate(questions_left):
            expected = reference(
                [{"prediction_text": answers[item.id], "id": item.id}],
                [
                    {
                        "answers": {
                            "answer_start": [0],
                            "text": [answer.text for answer in item.answers],
                        },
                        "id": item.id,
                    }
                ],
            )
            assert 100 * scores.exact[number] == pytest.approx(float(expected["exact_match"]))
            assert 100 * scores.f1[number] == pytest.approx(float(expected["f1"]), abs=1e-4)
        assert 0.1 < scores.exact.mean() < scores.f1.mean() < 0.9


def test_summaries_separate_answerable_and_unanswerable_questions() -> None:
    questions = (
        question_with("a", "Rollo"),
        question_with("b", "West Francia"),
        question_with("c"),
        question_with("d"),
        question_with("e"),
    )
    answers = {"a": "Rollo.", "b": "Francia", "c": "", "d": "911", "e": "", "of another file": "x"}
    scores = score(SquadSplit(questions, "2.0", "made"), answers)
    assert scores.exact.tolist() == [1, 0, 1, 0, 1]
    assert scores.summary() == {
        "exact": pytest.approx(60),
        "f1": pytest.approx(100 * (3 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(50),
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": pytest.approx(200 / 3),
        "NoAns_f1": pytest.approx(200 / 3),
        "NoAns_total": 3,
    }
    assert score(SquadSplit(questions[:2], "1.1", "made"), answers).summary().keys() == {
        "exact",
        "f1",
        "total",
    }
    assert "HasAns_f1" not in score(SquadSplit(questions[2:], "2.0", "made"), answers).summary()


def test_every_question_needs_a_prediction() -> None:
    with pytest.raises(
        DataError,
        match=r"every question of dev\.json, but 1 of 2 are missing, the first of them b\.$",
    ):
        score(
            SquadSplit((question_with("a", "x"), question_with("b", "y")), "1.1", "dev.json"),
            {"a": "x"},
        )
