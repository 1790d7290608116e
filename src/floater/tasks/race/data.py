"""Questions of RACE, checked: articles as JSON lines, or the original folders with one file an
article.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, brief
from ...files import digest
from ..schema import checked, field, read_json, read_json_lines

Level = Literal["middle", "high"]
LEVELS: tuple[Level, ...] = ("middle", "high")
LETTERS = "ABCD"
OPTIONS = len(LETTERS)


@dataclass(frozen=True)
class RaceQuestion:
    """A question about an article, its four options and the number of the right one.

    The id is the article's, and which it is.
    """

    id: str
    level: Level
    article: str
    text: str
    options: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class RaceSplit:
    """The questions of files."""

    questions: tuple[RaceQuestion, ...]
    name: str

    def __len__(self) -> int:
        return len(self.questions)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder remembers of its data."""
        texts = [
            json.dumps([one.id, one.article, one.text, one.options, one.answer])
            for one in self.questions
        ]
        return {"from": self.name, "questions": len(self), "sha256": digest(texts)}


def read(*paths: Path) -> RaceSplit:
    """The questions of JSON lines files (plain or .gz, one article a line) and of folders (one .txt
    an article, at any depth).
    """
    found: dict[str, list[RaceQuestion]] = {}
    for path in paths:
        for place, entry in _articles(path):
            name = field(entry, "id", str, place)
            if name in found:
                raise DataError(
                    f"{place}: `id` must be its own, but an earlier article has {brief(name)} too."
                )
            found[name] = list(_questions(name, entry, f"{place}, article {name}"))
    questions = tuple(question for article in found.values() for question in article)
    name = " | ".join(map(str, paths))
    if not questions:
        raise DataError(
            f"{name or 'The list of files'} must hold at least one question, but holds none."
        )
    return RaceSplit(questions, name)


def _articles(path: Path) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        yield from ((str(file), read_json(file)) for file in sorted(path.rglob("*.txt")))
    else:
        yield from read_json_lines(path)


def _questions(name: str, entry: dict[str, Any], place: str) -> Iterator[RaceQuestion]:
    level: Level | None = next((level for level in LEVELS if name.startswith(level)), None)
    if level is None:
        raise DataError(
            f"{place}: `id` must begin with middle or high, the article's level, but is "
            f"{brief(name)}."
        )
    article = field(entry, "article", str, place)
    texts, options, answers = (
        field(entry, key, list, place) for key in ("questions", "options", "answers")
    )
    if not len(texts) == len(options) == len(answers):
        raise DataError(
            f"{place}: must have equally many questions, options and answers, but has {len(texts)},"
            f" {len(options)} and {len(answers)}."
        )
    for number, (text, choices, letter) in enumerate(zip(texts, options, answers, strict=True)):
        where = f"{place}, question {number}"
        if len(checked(choices, list, "`options`", where)) != OPTIONS:
            raise DataError(f"{where}: must have {OPTIONS} options, but has {len(choices)}.")
        if letter not in tuple(LETTERS):
            raise DataError(
                f"{where}: the answer must be one of {', '.join(LETTERS)}, but is {brief(letter)}."
            )
        yield RaceQuestion(
            f"{name}/{number}",
            level,
            article,
            checked(text, str, "its text", where),
            tuple(
                checked(choice, str, f"option {mark}", where)
                for mark, choice in zip(LETTERS, choices, strict=True)
            ),
            LETTERS.index(letter),
        )
