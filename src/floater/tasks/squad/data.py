"""Reading and checking SQuAD files in the official schema, and files of predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, brief
from ...files import digest, read_lines, write_text
from ..schema import checked, field, read_json
from ..understanding.problem import sample

Version = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class Answer:
    """An answer text, and the index of its first character in the context."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Index of the character after its last one."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class SquadQuestion:
    """A question about a context; it has no answers if the context does not answer it."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def answerable(self) -> bool:
        """Whether the context contains an answer."""
        return bool(self.answers)


@dataclass(frozen=True)
class SquadSplit:
    """The questions of a file. Only version 2.0 has unanswerable questions."""

    questions: tuple[SquadQuestion, ...]
    version: Version
    name: str

    def __len__(self) -> int:
        return len(self.questions)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about the data."""
        texts = [
            json.dumps(
                [
                    item.id,
                    item.text,
                    item.context,
                    [(answer.text, answer.start) for answer in item.answers],
                ]
            )
            for item in self.questions
        ]
        return {
            "from": self.name,
            "version": self.version,
            "questions": len(self),
            "sha256": digest(texts),
        }

    def sampled(self, size: int | None) -> SquadSplit:
        """A fixed sample of `size` questions in their order; itself if all are taken."""
        chosen = sample(len(self), size)
        if chosen is None:
            return self
        questions = tuple(self.questions[i] for i in chosen)
        return SquadSplit(questions, self.version, f"{self.name} ({size} drawn)")


def read(path: Path) -> SquadSplit:
    """Read a JSON file in the official schema, plain or .gz.

    A file is of version 2.0 if its questions have `is_impossible`, whatever version it states.
    """
    questions: dict[str, SquadQuestion] = {}
    has_impossible = False
    for location, paragraph in _paragraphs(path):
        context = field(paragraph, "context", str, location)
        for number, entry in enumerate(field(paragraph, "qas", list, location), 1):
            name = field(entry, "id", str, f"{location}, question {number}")
            if name in questions:
                raise DataError(
                    f"{path}, line {_line(path, name, 2)}, question {name}: `id` must be unique, "
                    "but an earlier question has it."
                )
            try:
                questions[name] = _question(name, entry, context, f", question {name}")
            except DataError as error:
                raise DataError(f"{path}, line {_line(path, name)}{error}") from None
            has_impossible |= "is_impossible" in entry
    if not questions:
        raise DataError(f"{path} must hold at least one question, but holds none.")
    return SquadSplit(tuple(questions.values()), "2.0" if has_impossible else "1.1", str(path))


def _paragraphs(path: Path) -> Iterator[tuple[str, Any]]:
    """The paragraphs of a file, with the location of each for messages."""
    for number, article in enumerate(field(read_json(path), "data", list, str(path)), 1):
        location = f"{path}, article {number}"
        for index, paragraph in enumerate(field(article, "paragraphs", list, location), 1):
            yield f"{location}, paragraph {index}", paragraph


def _line(path: Path, name: str, occurrence: int = 1) -> int:
    """The line with the first, second, … occurrence of a question's id."""
    spellings = json.dumps(name), json.dumps(name, ensure_ascii=False)
    count = 0
    for number, line in enumerate(read_lines(path), 1):
        count += max(map(line.count, spellings))
        if count >= occurrence:
            return number
    return 1


def _question(name: str, entry: dict[str, Any], context: str, location: str) -> SquadQuestion:
    text = field(entry, "question", str, location)
    impossible = "is_impossible" in entry and field(entry, "is_impossible", bool, location)
    answers = tuple(
        _answer(answer, context, f"{location}, answer {number}")
        for number, answer in enumerate(field(entry, "answers", list, location), 1)
    )
    if impossible and answers:
        raise DataError(
            f"{location}: must have no answers, because it `is_impossible`, but has {len(answers)}."
        )
    if not impossible and not answers:
        raise DataError(
            f"{location}: must have an answer, or `is_impossible` set to true (version 2.0), but "
            "has neither."
        )
    return SquadQuestion(name, text.strip(), context, answers)


def _answer(entry: Any, context: str, location: str) -> Answer:
    text = field(entry, "text", str, location)
    answer = Answer(text, field(entry, "answer_start", int, location))
    if not text.strip():
        raise DataError(f"{location}: `text` must not be empty, but is {brief(text)}.")
    actual = context[answer.start : answer.end] if answer.start >= 0 else ""
    if actual != text:
        reason = (
            f"where the context has {brief(actual)}"
            if actual
            else f"outside the context of {len(context):,} characters"
        )
        raise DataError(
            f"{location}: `answer_start` must be where {brief(text)} begins in the context, but is "
            f"{answer.start}, {reason}."
        )
    return answer


def write_predictions(path: Path, answers: Mapping[str, str]) -> None:
    """Write {id: text}, the format of the official scripts; an empty text means no answer."""
    write_text(path, json.dumps(dict(answers), ensure_ascii=False, indent=1) + "\n")


def read_predictions(path: Path) -> dict[str, str]:
    """Read {id: text}."""
    entries = checked(read_json(path), dict, "its content", str(path))
    return {
        name: checked(text, str, f"the answer to question {name}", str(path))
        for name, text in entries.items()
    }
