"""The scores of a run, `scores.json`: one entry per test set, and paired tests against other runs.

Every task writes these types and every reader gets them. `Scores.from_file` also
reads version 1, in which each task had a layout of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..config import Config
from ..errors import ConfigError, RunError
from .checked_json import read_checked, write_checked
from .version import VERSION, check_version

SCORES = "scores.json"
LARGEST = 1e100
"""Largest magnitude of a number that can still be added up and drawn."""
Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Examples = Annotated[int, Field(strict=True, ge=0, le=10**15)]
_AGAINST = " against "
"""In the first layout, between a test set and the other run in the key of a paired test."""
_NOT_SCORES = ("bins", "data", "sha256")
"""Objects of an entry in the first layout that are not scores."""
LOSSES = ("loss", "perplexity")
"""Measures of the first layout, which did not record the direction, of which less is better."""


class Score(Config):
    """A measured value.

    Attributes:
        score: the value.
        interval: half the width of its 95 % confidence interval, if there is one.
        signature: everything that makes the value comparable with others.
        more_is_better: False for losses.
    """

    score: Number
    interval: Number | None = None
    signature: str = ""
    more_is_better: bool = True


class BinScores(Config):
    """Scores of the examples of one bin, such as a range of source lengths."""

    examples: Examples = 0
    scores: dict[str, Score] = Field(default_factory=dict)


class SetScores(Config):
    """What a run scored on one test set.

    Attributes:
        scores: by measure.
        examples: size of the test set; None where it was not recorded.
        seconds: time that predicting took.
        data: fingerprint of the test set.
        settings: settings of the evaluation that a score depends on, such as the beam width.
        bins: the same scores by bin, where bins were requested.
        files: SHA-256 of the files with predictions, by name.
    """

    scores: dict[str, Score]
    examples: Examples | None = None
    seconds: Number | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    bins: dict[str, BinScores] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    def comparable(self, other: SetScores, measure: str) -> bool:
        """Whether both runs were measured on the same examples in the same way."""
        same_set = (self.data, self.examples, self.settings) == (
            other.data,
            other.examples,
            other.settings,
        )
        return same_set and self.scores[measure].signature == other.scores[measure].signature


class Difference(Config):
    """A paired test of two systems on the same examples.

    Attributes:
        base, other: their scores.
        difference: other - base.
        low, high: its 95 % confidence interval.
        p_value: of the hypothesis that there is no difference.
        signature: how the test was made.
    """

    base: Number | None = None
    other: Number | None = None
    difference: Number
    low: Number
    high: Number
    p_value: Number
    signature: str = ""


class PairedScore(Difference):
    """A paired test of a run against another one.

    Attributes:
        test_set: name of the test set.
        against: name of the other run, the base of the difference.
        measure: what was compared.
        more_is_better: False for losses.
    """

    test_set: str
    against: str
    measure: str
    more_is_better: bool = True


class Scores(Config):
    """The content of `scores.json`."""

    version: int = VERSION
    sets: dict[str, SetScores] = Field(default_factory=dict)
    """Scores by test set."""
    paired: list[PairedScore] = Field(default_factory=list)
    """Paired tests against other runs."""

    @classmethod
    def from_file(cls, path: Path) -> Scores:
        """Read a file of any version; an absent file gives empty scores."""
        values = read_checked(path)
        version = values.get("version", 1)
        check_version(path, version)
        try:
            return cls(**values) if version == VERSION else _from_first_layout(values)
        except ConfigError as error:
            raise RunError(
                f"{path} is damaged: {error} Restore a copy, or remove it and run `floater "
                f"evaluate {path.parent}`."
            ) from None

    def write(self, path: Path) -> None:
        """Write `scores.json`."""
        write_checked(path, self.model_dump(mode="json"))

    def with_set(self, name: str, scores: SetScores) -> Scores:
        """Add or replace the scores on a test set; paired tests of other scores go."""
        before = self.sets.get(name)
        unchanged = before is not None and before.scores == scores.scores
        paired = [test for test in self.paired if unchanged or test.test_set != name]
        return Scores(sets={**self.sets, name: scores}, paired=paired)

    def with_paired(self, tests: list[PairedScore]) -> Scores:
        """Add or replace paired tests."""
        new = {_key(test) for test in tests}
        kept = [test for test in self.paired if _key(test) not in new]
        return Scores(sets=self.sets, paired=[*kept, *tests])


def _key(test: PairedScore) -> tuple[str, str, str]:
    return test.test_set, test.against, test.measure


def _from_first_layout(values: Mapping[str, Any]) -> Scores:
    """Scores lay beside the other keys of an entry; paired tests were entries named `A against B`,
    for translation without the name of the measure.
    """
    sets, paired = {}, []
    for key, entry in values.items():
        if not isinstance(entry, dict):
            continue
        test_set, between, against = key.partition(_AGAINST)
        if not between:
            sets[key] = _set_from_first_layout(entry)
            continue
        for measure, test in (entry if "difference" not in entry else {"bleu": entry}).items():
            if isinstance(test, dict):
                names = {"test_set": test_set, "against": against, "measure": measure}
                direction = {"more_is_better": measure not in LOSSES}
                paired.append(PairedScore(**{**test, **names, **direction}))
    return Scores(sets=sets, paired=paired)


def _set_from_first_layout(entry: Mapping[str, Any]) -> SetScores:
    bins, data, files = (_object(entry.get(name)) for name in _NOT_SCORES)
    return SetScores(
        scores=_scores(entry),
        examples=entry.get("examples", entry.get("pairs")),
        seconds=entry.get("seconds"),
        data=data,
        settings={name: entry[name] for name in ("beam", "length_penalty") if name in entry},
        bins={
            str(label): BinScores(examples=content.get("pairs", 0), scores=_scores(content))
            for label, content in bins.items()
            if isinstance(content, dict)
        },
        files=files,
    )


def _scores(entry: Mapping[str, Any]) -> dict[str, Score]:
    return {
        measure: Score(**{**value, "more_is_better": measure not in LOSSES})
        for measure, value in entry.items()
        if measure not in _NOT_SCORES and isinstance(value, dict) and "score" in value
    }


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
