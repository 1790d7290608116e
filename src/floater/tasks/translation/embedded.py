"""Real language without a download: numbers, dates and times of day, written out in English, German
and French.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet
from datetime import date, time
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...config import Config, Count
from ...errors import DataError

Kind = Literal["number", "date", "time"]
Item = int | date | time
Line = tuple[Item, ...]
LANGUAGES = ("en", "de", "fr")
_DRAWS = 100  # attempts to draw a line that is not in the training split


class Lines(Config):
    """The number of lines, and of items per line, drawn uniformly."""

    pairs: Count
    """Number of lines."""
    shortest: Count = 1
    """Smallest number of items of a line."""
    longest: Count = 4
    """Largest number of items of a line."""

    @model_validator(mode="after")
    def _in_order(self) -> Lines:
        if self.shortest > self.longest:
            raise ValueError(
                f"`shortest` must not exceed `longest` ({self.longest}), but is {self.shortest}"
            )
        return self


class Embedded(Config):
    """A generated corpus: the same for the same seed, on every machine.

    A line is a list of items; its translation is right or wrong. No line of the training split is
    in the other two.
    """

    train: Lines
    """The training split."""
    valid: Lines
    """The validation split."""
    test: Lines
    """The test split."""
    items: Annotated[tuple[Kind, ...], Field(min_length=1)] = ("number", "date", "time")
    """Kinds of items."""
    largest: Count = 9999
    """Largest number; small ones are as frequent as large ones (a number of digits is drawn first).
    """
    seed: int = 0
    """Seed of the generator."""


def generate(
    config: Embedded, part: Literal["train", "valid", "test"], source: str, target: str
) -> tuple[list[str], list[str]]:
    """The lines of a split, in two languages."""
    for language in (source, target):
        if language not in LANGUAGES:
            raise DataError(
                f"The embedded corpus is written in {', '.join(LANGUAGES)}, but {language!r} was "
                "asked for."
            )
    known = frozenset() if part == "train" else frozenset(_lines(config, "train", frozenset()))
    drawn = list(_lines(config, part, known))
    return [write(line, source) for line in drawn], [write(line, target) for line in drawn]


def write(line: Line, language: str) -> str:
    """A line of items in a language."""
    return "; ".join(spell(item, language) for item in line)


def _lines(config: Embedded, part: str, known: AnySet[Line]) -> Iterator[Line]:
    lines: Lines = getattr(config, part)
    draw = random.Random(f"{config.seed} {part}")
    for _ in range(lines.pairs):
        for _ in range(_DRAWS):
            line = tuple(
                _item(draw, config) for _ in range(draw.randint(lines.shortest, lines.longest))
            )
            if line not in known:
                break
        else:
            raise DataError(
                f"The {part} part of the embedded corpus must differ from its training part, but "
                f"{_DRAWS} draws gave only lines that are in both; allow more items a line, or a "
                "larger number (`longest`, `largest`)."
            )
        yield line


def _item(draw: random.Random, config: Embedded) -> Item:
    kind = draw.choice(config.items)
    if kind == "number":
        digits = draw.randint(1, len(str(config.largest)))
        low, high = (10 ** (digits - 1) if digits > 1 else 0), min(10**digits - 1, config.largest)
        return draw.randint(low, high)
    if kind == "date":
        return date.fromordinal(
            draw.randint(date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal())
        )
    return time(draw.randrange(24), draw.randrange(60))


@lru_cache(maxsize=1 << 16)
def spell(item: Item, language: str) -> str:
    """An item in words."""
    if isinstance(item, date):
        return _date(item, language)
    if isinstance(item, time):
        return _time(item, language)
    return _number(item, language)


@lru_cache(maxsize=1 << 16)
def _number(value: int, language: str, form: str = "cardinal") -> str:
    from num2words import num2words  # noqa: PLC0415  (only this corpus needs it)

    return str(num2words(value, lang=language, to=form))


@cache
def _names(what: Literal["months", "days", "day_periods"], language: str) -> Mapping[Any, str]:
    from babel import Locale  # noqa: PLC0415  (only this corpus needs it)

    found: Mapping[Any, str] = getattr(Locale(language), what)["format"]["wide"]
    return found


def _date(value: date, language: str) -> str:
    day, month = _names("days", language)[value.weekday()], _names("months", language)[value.month]
    year = _number(value.year, language, "year")
    if language == "en":
        return f"{day}, {month} {_number(value.day, language, 'ordinal')}, {year}"
    if language == "de":
        return f"{day}, der {_number(value.day, language, 'ordinal')} {month} {year}"
    return f"{day} {'premier' if value.day == 1 else _number(value.day, language)} {month} {year}"


def _time(value: time, language: str) -> str:
    """English has twelve hours and names the part of the day last; German and French have
    twenty-four.
    """
    hour, minute = value.hour, value.minute
    if language == "en":
        spoken = (
            "o'clock" if minute == 0 else ("oh " if minute < 10 else "") + _number(minute, language)
        )
        return f"{_number((hour - 1) % 12 + 1, language)} {spoken} {_part_of_day(value)}"
    if language == "de":
        return (
            f"{'ein' if hour == 1 else _number(hour, language)} "
            f"Uhr{f' {_number(minute, language)}' if minute else ''}"
        )
    feminine = f"{_number(hour, language)}e" if hour % 20 == 1 else _number(hour, language)
    return (
        f"{feminine} "
        f"heure{'s' if hour > 1 else ''}{f' {_number(minute, language)}' if minute else ''}"
    )


def _part_of_day(value: time) -> str:
    from babel.dates import get_period_id  # noqa: PLC0415  (only this corpus needs it)

    period = get_period_id(value, tzinfo=None, type=None, locale="en")
    return _names("day_periods", "en")[period]
