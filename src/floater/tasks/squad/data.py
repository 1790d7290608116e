"""Questions from files of SQuAD's official schema, checked, and files of predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, brief
from ...files import digest, read_lines, write_text
from ..schema import checked, field, read_json

Version = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class Answer:
    """A text, and the character of the context it begins at."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The character behind its last."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class SquadQuestion:
    """A question about a context; without answers it is one that the context does not answer."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def answerable(self) -> bool:
        """Whether the context answers it."""
        return bool(self.answers)


@dataclass(frozen=True)
class SquadSplit:
    """The questions of a file. Only version 2.0 has unanswerable ones."""

    questions: tuple[SquadQuestion, ...]
    version: Version
    name: str

    def __len__(self) -> int:
        return len(self.questions)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder remembers of its data."""
        texts = [
            json.dumps(
                [
                    one.id,
                    one.text,
                    one.context,
                    [(answer.text, answer.start) for answer in one.answers],
                ]
            )
            for one in self.questions
        ]
        return {
            "from": self.name,
            "version": self.version,
            "questions": len(self),
            "sha256": digest(texts),
        }


def read(path: Path) -> SquadSplit:
    """The questions of a JSON file of the official schema, plain or .gz.

    A file is of version 2.0 where its questions say whether they are impossible, whatever it calls
    itself.
    """
    found: dict[str, SquadQuestion] = {}
    impossible_known = False
    for number, article in enumerate(field(read_json(path), "data", list, str(path)), 1):
        place = f"{path}, article {number}"
        for place_in, paragraph in enumerate(field(article, "paragraphs", list, place), 1):
            where = f"{place}, paragraph {place_in}"
            context = field(paragraph, "context", str, where)
            for nth, entry in enumerate(field(paragraph, "qas", list, where), 1):
                name = field(entry, "id", str, f"{where}, question {nth}")
                if name in found:
                    line = _line(path, name, 2)
                    raise DataError(
                        f"{path}, line {line}, question {name}: `id` must be its own, but an "
                        "earlier question has it."
                    )
                try:
                    found[name] = _question(name, entry, context, f", question {name}")
                except DataError as error:
                    raise DataError(f"{path}, line {_line(path, name)}{error}") from None
                impossible_known |= "is_impossible" in entry
    if not found:
        raise DataError(f"{path} must hold at least one question, but holds none.")
    return SquadSplit(tuple(found.values()), "2.0" if impossible_known else "1.1", str(path))


def _line(path: Path, name: str, time: int = 1) -> int:
    """The line in which a question's name stands for the so-many-th time."""
    written = json.dumps(name), json.dumps(name, ensure_ascii=False)
    seen = 0
    for number, line in enumerate(read_lines(path), 1):
        seen += max(map(line.count, written))
        if seen >= time:
            return number
    return 1


def _question(name: str, entry: dict[str, Any], context: str, place: str) -> SquadQuestion:
    text = field(entry, "question", str, place)
    impossible = "is_impossible" in entry and field(entry, "is_impossible", bool, place)
    given = field(entry, "answers", list, place)
    answers = tuple(
        _answer(answer, context, f"{place}, answer {number}")
        for number, answer in enumerate(given, 1)
    )
    if impossible and answers:
        raise DataError(
            f"{place}: must have no answers, as it `is_impossible`, but has {len(answers)}."
        )
    if not impossible and not answers:
        raise DataError(
            f"{place}: must have an answer, or `is_impossible` set to true (version 2.0), but has "
            "neither."
        )
    return SquadQuestion(name, text.strip(), context, answers)


def _answer(entry: Any, context: str, place: str) -> Answer:
    found = Answer(field(entry, "text", str, place), field(entry, "answer_start", int, place))
    if not found.text.strip():
        raise DataError(f"{place}: `text` must not be empty, but is {brief(found.text)}.")
    there = context[found.start : found.end] if found.start >= 0 else ""
    if there != found.text:
        stands = (
            f"{brief(there)} stands there"
            if there
            else f"the context has {len(context):,} characters"
        )
        raise DataError(
            f"{place}: `answer_start` must be where {brief(found.text)} begins in the context, but "
            f"is {found.start}, and {stands}."
        )
    return found


def write_predictions(path: Path, answers: Mapping[str, str]) -> None:
    """Write {id: text}, as the official scripts read it; the empty text says that there is no
    answer.
    """
    write_text(path, json.dumps(dict(answers), ensure_ascii=False, indent=1) + "\n")


def read_predictions(path: Path) -> dict[str, str]:
    """Read {id: text}."""
    entries = checked(read_json(path), dict, "what it holds", str(path))
    return {
        name: checked(text, str, f"the answer to question {name}", str(path))
        for name, text in entries.items()
    }
