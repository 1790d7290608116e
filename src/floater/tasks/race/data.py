"""Reading and checking RACE: JSON lines files, or the original folders (one file per article)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, brief
from ...files import digest
from ..schema import checked, field, read_json, read_json_lines
from ..understanding.problem import sample

Level = Literal["middle", "high"]
LEVELS: tuple[Level, ...] = ("middle", "high")
LETTERS = "ABCD"
OPTIONS = len(LETTERS)


@dataclass(frozen=True)
class RaceQuestion:
    """A question about an article, with four options.

    Attributes:
        id: the article's id and the number of the question.
        level: middle or high school.
        article: the text that the question is about.
        text: the question.
        options: the possible answers.
        answer: index of the right option.
    """

    id: str
    level: Level
    article: str
    text: str
    options: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class RaceSplit:
    """The questions of some files."""

    questions: tuple[RaceQuestion, ...]
    name: str

    def __len__(self) -> int:
        return len(self.questions)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about the data."""
        texts = [
            json.dumps([item.id, item.article, item.text, item.options, item.answer])
            for item in self.questions
        ]
        return {"from": self.name, "questions": len(self), "sha256": digest(texts)}

    def sampled(self, size: int | None) -> RaceSplit:
        """A fixed sample of `size` questions in their order; itself if all are taken."""
        chosen = sample(len(self), size)
        if chosen is None:
            return self
        questions = tuple(self.questions[i] for i in chosen)
        return RaceSplit(questions, f"{self.name} ({size} drawn)")


def read(*paths: Path) -> RaceSplit:
    """Read JSON lines files (plain or .gz, one article per line) and folders (one .txt file per
    article, at any depth).
    """
    articles: dict[str, list[RaceQuestion]] = {}
    for path in paths:
        for location, entry in _articles(path):
            name = field(entry, "id", str, location)
            if name in articles:
                raise DataError(
                    f"{location}: `id` must be unique, but an earlier article also has "
                    f"{brief(name)}."
                )
            articles[name] = list(_questions(name, entry, f"{location}, article {name}"))
    questions = tuple(question for article in articles.values() for question in article)
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


def _questions(name: str, entry: dict[str, Any], location: str) -> Iterator[RaceQuestion]:
    level: Level | None = next((level for level in LEVELS if name.startswith(level)), None)
    if level is None:
        raise DataError(
            f"{location}: `id` must begin with middle or high, the article's level, but is "
            f"{brief(name)}."
        )
    article = field(entry, "article", str, location)
    texts, options, answers = (
        field(entry, key, list, location) for key in ("questions", "options", "answers")
    )
    if not len(texts) == len(options) == len(answers):
        raise DataError(
            f"{location}: must have the same number of questions, options and answers, but has "
            f"{len(texts)}, {len(options)} and {len(answers)}."
        )
    for number, (text, choices, letter) in enumerate(zip(texts, options, answers, strict=True)):
        where = f"{location}, question {number}"
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
