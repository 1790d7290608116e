"""What `floater compare` measured, `comparison.json`: variants of a model against a base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ..config import Config
from ..errors import ConfigError, RunError
from .checked_json import read_checked, write_checked
from .scores import LOSSES, Examples, Number, PairedScore
from .version import VERSION, check_version

COMPARISON = "comparison.json"


class StartCheck(Config):
    """Whether all variants are the same model before training.

    Attributes:
        identical: their logits are equal, bit for bit.
        inputs: number of inputs that were compared.
        fresh_in_place_of_trained: new encoders were compared where the config names trained ones.
    """

    identical: bool
    inputs: int
    fresh_in_place_of_trained: bool


class VariantScore(PairedScore):
    """A variant against the base on one test set, by one measure; medians over the seeds.

    Attributes:
        variant: its name.
        examples: size of the test set.
        seeds: the scores of the base and of the variant, by name, one per seed.
    """

    variant: str
    examples: Examples | None = None
    seeds: dict[str, list[Number]] = Field(default_factory=dict)


class Comparison(Config):
    """The content of `comparison.json`.

    Attributes:
        task, name, model: what was compared.
        main: the task's main measure.
        more_is_better: whether a larger main measure is better.
        base: name of the variant that the others are compared with.
        seeds: of the runs.
        start: the models before training, by seed.
        training_seconds: by variant, one per seed.
        rows: every other variant on every test set and measure.
    """

    version: int = VERSION
    task: str = ""
    name: str = ""
    model: str = ""
    main: str = ""
    more_is_better: bool = True
    base: str = "base"
    seeds: list[int] = Field(default_factory=list)
    start: dict[str, StartCheck] = Field(default_factory=dict)
    training_seconds: dict[str, list[Number | None]] = Field(default_factory=dict)
    rows: list[VariantScore] = Field(default_factory=list)

    @classmethod
    def from_file(cls, path: Path) -> Comparison:
        """Read a file of any version; an absent file gives an empty comparison."""
        values = read_checked(path)
        version = values.get("version", 1)
        check_version(path, version)
        try:
            return cls(**values) if version == VERSION else _from_first_layout(values)
        except ConfigError as error:
            raise RunError(
                f"{path} is damaged: {error} Restore a copy, or run `floater compare` again."
            ) from None

    def write(self, path: Path) -> None:
        """Write `comparison.json`."""
        write_checked(path, self.model_dump(mode="json"))

    def variants(self) -> dict[str, list[VariantScore]]:
        """The rows of each variant."""
        rows: dict[str, list[VariantScore]] = {}
        for row in self.rows:
            rows.setdefault(row.variant, []).append(row)
        return rows


def _from_first_layout(values: Mapping[str, Any]) -> Comparison:
    """The rows were nested objects: arms, then test sets, then measures."""
    known = {name: value for name, value in values.items() if name in Comparison.model_fields}
    known.pop("version", None)
    base = str(values.get("base", "base"))
    return Comparison(**{**known, "rows": list(_rows(values.get("arms"), base))})


def _rows(arms: object, base: str) -> Iterator[VariantScore]:
    for variant, sets in _items(arms):
        for test_set, measures in _items(sets):
            for measure, test in _items(measures):
                if isinstance(test, dict):
                    names = {"test_set": test_set, "against": base, "measure": measure}
                    direction = {"more_is_better": measure not in LOSSES}
                    yield VariantScore(**{**test, **names, **direction, "variant": variant})


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []
