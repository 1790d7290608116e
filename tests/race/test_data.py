from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.tasks.race.data import read


def article(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "article": "Tom has a cat. The cat likes fish.",
        "questions": ["Tom has a _ .", "What does it like?"],
        "options": [["dog", "cat", "cow", "pig"], ["Fish.", "Milk.", "Tea.", "Rice."]],
        "answers": ["B", "A"],
        **changes,
    }


def write(path: Path, *articles: Any) -> Path:
    text = "".join(f"{json.dumps(article)}\n" for article in articles).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_files_of_both_levels_are_read_as_one(tmp_path: Path) -> None:
    middle = write(tmp_path / "dev.middle.jsonl", article("middle1.txt"))
    high = write(tmp_path / "dev.high.jsonl.gz", article("high1.txt"), article("high2.txt"))
    data = read(middle, high)
    assert [question.id for question in data.questions] == [
        f"{name}.txt/{number}" for name in ("middle1", "high1", "high2") for number in (0, 1)
    ]
    assert [question.level for question in data.questions] == ["middle"] * 2 + ["high"] * 4
    first, second, *_ = data.questions
    assert (first.text, first.options[first.answer], second.options[second.answer]) == (
        "Tom has a _ .",
        "cat",
        "Fish.",
    )
    assert first.article is second.article
    assert data.fingerprint()["questions"] == len(data) == 6
    assert data.fingerprint()["sha256"] != read(high, middle).fingerprint()["sha256"]


def test_the_original_folders_are_read_too(tmp_path: Path) -> None:
    for name in ("high1", "middle7"):
        folder = tmp_path / "dev" / name.rstrip("0123456789")
        folder.mkdir(parents=True)
        (folder / f"{name}.txt").write_text(json.dumps(article(f"{name}.txt"), indent=1))
    assert [question.id for question in read(tmp_path / "dev").questions[::2]] == [
        "high1.txt/0",
        "middle7.txt/0",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"dev\.jsonl, line 1: must be an object with `id`, but is \[\]\.$"),
        ({"id": 3}, r"line 1: `id` must be text, but is 3\.$"),
        (
            article("low1.txt"),
            (
                r"low1\.txt: `id` must begin with middle or high, the article's level, but is"
                r" 'low1\.txt'\.$"
            ),
        ),
        (
            article("high1.txt", answers=["A"]),
            r"must have the same number of questions, options and answers, but has 2, 2 and 1\.$",
        ),
        (
            article("high1.txt", answers=["A", "E"]),
            r"high1\.txt, question 1: the answer must be one of A, B, C, D, but is 'E'\.$",
        ),
        (
            article("high1.txt", answers=["AB", "A"]),
            r"question 0: the answer must be one of A, B, C, D, but is 'AB'\.$",
        ),
        (
            article("high1.txt", options=[["a"] * 4, ["b"] * 3]),
            r"question 1: must have 4 options, but has 3\.$",
        ),
        (
            article("high1.txt", options=["abcd", "abcd"]),
            r"question 0: `options` must be a list, but is 'abcd'\.$",
        ),
        (
            article("high1.txt", options=[["a", "b", 3, "d"]] * 2),
            r"question 0: option C must be text, but is 3\.$",
        ),
        (
            article("high1.txt", questions=[None, ""]),
            r"question 0: its text must be text, but is None\.$",
        ),
        (
            article("high1.txt", questions=[], options=[], answers=[]),
            r"must hold at least one question, but holds none\.$",
        ),
    ],
)
def test_errors_are_one_line_that_names_the_question(
    tmp_path: Path, content: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(write(tmp_path / "dev.jsonl", content))
    assert "\n" not in str(caught.value)


def test_an_article_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"line 2: `id` must be unique, but an earlier article also has 'high1\.txt'\.$",
    ):
        read(write(tmp_path / "dev.jsonl", article("high1.txt"), article("high1.txt")))


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.jsonl", article("high1.txt"))
    path.write_text(path.read_text() + "\n{'id': 1}\n")
    with pytest.raises(DataError, match=r"dev\.jsonl, line 3: must be JSON, but is not: "):
        read(path)
