from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.tasks.squad.data import Answer, read, read_predictions, write_predictions

from .files import CONTEXT, entry, file


def write(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_questions_are_read_with_all_their_answers(tmp_path: Path, name: str) -> None:
    data = read(
        write(
            tmp_path / name,
            file(entry("a", "  Where is it? ", "France", "in France"), entry("b", "When?", "911")),
        )
    )
    first, second = data.questions
    assert (data.version, len(data)) == ("1.1", 2)
    assert (first.id, first.text, first.context) == ("a", "Where is it?", CONTEXT)
    assert first.answers == (
        Answer("France", CONTEXT.index("France")),
        Answer("in France", CONTEXT.index("in France")),
    )
    assert CONTEXT[second.answers[0].start : second.answers[0].end] == "911"


def test_version_two_has_questions_without_an_answer(tmp_path: Path) -> None:
    plausible = {
        "plausible_answers": [{"text": "Rollo", "answer_start": 0}]
    }  # of the training file; not looked at
    entries = (
        entry("a", "Who?", "Rollo", is_impossible=False),
        entry("b", "Who not?", is_impossible=True, **plausible),
    )
    data = read(write(tmp_path / "train.json", file(*entries)))
    assert data.version == "2.0"
    assert [question.answerable for question in data.questions] == [True, False]


def test_the_fingerprint_follows_the_answers(tmp_path: Path) -> None:
    first, same, other = (
        read(write(tmp_path / f"{name}.json", file(entry("a", "Who?", text)))).fingerprint()
        for name, text in (("one", "Rollo"), ("same", "Rollo"), ("other", "Charles"))
    )
    assert first["sha256"] == same["sha256"] != other["sha256"]
    assert first["questions"] == 1


def changed(**changes: Any) -> dict[str, Any]:
    return file(
        {
            key: value
            for key, value in {**entry("q7", "Who?", "Rollo"), **changes}.items()
            if value is not None
        }
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"dev\.json: must be an object with `data`, but is \[\]\.$"),
        ({"rows": []}, r"dev\.json: must have `data`, but has rows\.$"),
        ({"data": {}}, r"dev\.json: `data` must be a list, but is \{\}\.$"),
        ({"data": []}, r"dev\.json must hold at least one question, but holds none\.$"),
        ({"data": [{}]}, r"dev\.json, article 1: must have `paragraphs`, but has nothing\.$"),
        (
            {"data": [{"paragraphs": [{"qas": []}]}]},
            r"article 1, paragraph 1: must have `context`, but has qas\.$",
        ),
        (
            changed(id=None),
            r"article 1, paragraph 1, question 1: must have `id`, but has question, answers\.$",
        ),
        (changed(id=7), r"question 1: `id` must be text, but is 7\.$"),
        (changed(question=None), r"question q7: must have `question`, but has id, answers\.$"),
        (
            changed(question="\ud83d"),
            r"question q7: `question` must be Unicode text, but holds half of a surrogate pair",
        ),
        (changed(answers=None), r"question q7: must have `answers`, but has id, question\.$"),
        (
            changed(answers=[]),
            (
                r"question q7: must have an answer, or `is_impossible` set to true \(version"
                r" 2\.0\), but has neither\.$"
            ),
        ),
        (
            changed(is_impossible=True),
            r"question q7: must have no answers, because it `is_impossible`, but has 1\.$",
        ),
        (
            changed(is_impossible="no"),
            r"question q7: `is_impossible` must be true or false, but is 'no'\.$",
        ),
        (
            changed(answers=["Rollo"]),
            r"question q7, answer 1: must be an object with `text`, but is 'Rollo'\.$",
        ),
        (
            changed(answers=[{"text": " ", "answer_start": 3}]),
            r"question q7, answer 1: `text` must not be empty, but is ' '\.$",
        ),
        (
            changed(answers=[{"text": "The", "answer_start": True}]),
            r"answer 1: `answer_start` must be an integer, but is True\.$",
        ),
        (
            changed(answers=[{"text": "Normans", "answer_start": 5}]),
            (
                r"q7, answer 1: `answer_start` must be where 'Normans' begins in the context, but"
                r" is 5, where the context has 'ormans '\.$"
            ),
        ),
        (
            changed(answers=[{"text": "Normans", "answer_start": 5000}]),
            r"but is 5000, outside the context of \d+ characters\.$",
        ),
        (
            changed(answers=[{"text": ".", "answer_start": -1}]),
            r"but is -1, outside the context of \d+ characters\.$",
        ),
        (
            file(entry("q7", "Who?", "Rollo"), entry("q7", "When?", "911")),
            r"question q7: `id` must be unique, but an earlier question",
        ),
    ],
)
def test_errors_are_one_line_that_names_the_question(
    tmp_path: Path, content: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(write(tmp_path / "dev.json", content))
    assert "\n" not in str(caught.value)


def test_errors_name_the_line_of_the_question(tmp_path: Path) -> None:
    """The line of the id, if a file has one field per line; of the second for a repeated id."""
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(changed(answers=[]), indent=1))
    line = next(
        number for number, text in enumerate(path.read_text().splitlines(), 1) if '"q7"' in text
    )
    assert line > 1
    with pytest.raises(
        DataError, match=rf"dev\.json, line {line}, question q7: must have an answer"
    ):
        read(path)
    path.write_text(
        json.dumps(file(entry("q7", "Who?", "Rollo"), entry("q7", "When?", "911")), indent=1)
    )
    second = [
        number for number, text in enumerate(path.read_text().splitlines(), 1) if '"q7"' in text
    ][1]
    with pytest.raises(DataError, match=rf"line {second}, question q7: `id` must be unique"):
        read(path)
    path.write_text(
        json.dumps(changed()).replace('"answer_start": ', '"answer_start": ' + "9" * 5000)
    )
    with pytest.raises(DataError, match=r"dev\.json: must be JSON .* but cannot be read"):
        read(path)


def test_a_file_that_is_not_json_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text('{"data": [\n{"title": }\n]}')
    with pytest.raises(
        DataError, match=r"dev\.json, line 2: must be JSON, but is not: Expecting value\.$"
    ):
        read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="nested too deeply"):
        read(path)
    with pytest.raises(DataError, match="but there is none; check the path"):
        read(tmp_path / "nothing.json")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json.gz", file(entry("a", "Who?", "Rollo")))
    damaged = bytearray(path.read_bytes())
    damaged[20] ^= 0xFF
    for content in (damaged, path.read_bytes()[:-20], b"no gzip"):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=r"dev\.json\.gz must be gzip by its name, but cannot be unpacked: "
        ):
            read(path)


def test_predictions_are_a_plain_object_of_texts(tmp_path: Path) -> None:
    answers = {"a": "Zoë's café", "b": ""}
    path = tmp_path / "out" / "predictions.json"
    write_predictions(path, answers)
    assert json.loads(path.read_text(encoding="utf-8")) == answers
    assert read_predictions(path) == answers
    with pytest.raises(DataError, match=r"the answer to question b must be text, but is None\.$"):
        read_predictions(write(tmp_path / "bad.json", {"a": "x", "b": None}))
    with pytest.raises(DataError, match=r"its content must be an object, but is \['x'\]\.$"):
        read_predictions(write(tmp_path / "list.json", ["x"]))
