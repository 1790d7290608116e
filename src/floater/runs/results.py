"""What a reproduction measured, `results.json`: tables, figures and a summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..config import Config
from ..errors import ConfigError, RunError, brief, first_line
from ..files import write_text
from .scores import LARGEST
from .version import VERSION, check_version

RESULTS = "results.json"


class Mean(Config):
    """A number measured with several seeds."""

    mean: float
    """Their mean."""
    deviation: float | None = None
    """Their standard deviation; None for one seed."""
    seeds: int = 1
    """How many there are."""
    digits: int = Field(default=2, ge=0, le=10)
    """Decimals to print."""


class Paper(Config):
    """A number that was not measured here, but stands in the paper; the report marks it as such."""

    paper: float
    """The paper's number."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | Mean | Paper) or _number(value):
        return value
    kind = (
        {"mean": Mean, "paper": Paper}.get(next(iter(value), ""))
        if isinstance(value, dict)
        else None
    )
    if kind is None:
        raise ConfigError(
            'a cell must be null, a text, a finite number, {"mean": …} or {"paper": …}, but is'
            f" {brief(value)}."
        )
    return kind(**value)


def _finite(value: Any) -> Any:
    if value is not None and not _number(value):
        raise ConfigError(f"a point must be a finite number or null, but is {brief(value)}.")
    return value


def _place(value: Any) -> Any:
    if not isinstance(value, str) and not _number(value):
        raise ConfigError(
            f"a place on the axis must be a text or a finite number, but is {brief(value)}."
        )
    return value


Cell = Annotated[str | int | float | Mean | Paper | None, BeforeValidator(_cell)]
Point = Annotated[float | None, BeforeValidator(_finite)]


class Table(Config):
    """One table."""

    title: str
    """Its heading."""
    note: str = ""
    """What a reader must know: what was measured on what, and how."""
    columns: list[str] = Field(min_length=1)
    """Headings of the columns; the first column names the rows."""
    rows: list[list[Cell]]
    """One list of cells a row."""

    @model_validator(mode="after")
    def _is_rectangular(self) -> Table:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"row {number} of {self.title!r} must have {len(self.columns)} cells, but has "
                    f"{len(row)}."
                )
        return self


class Series(Config):
    """One line of a figure."""

    name: str
    """What the legend calls it."""
    y: list[Point]
    """One value for each x; None where nothing was measured."""
    low: list[Point] | None = None
    """Lower ends of the intervals."""
    high: list[Point] | None = None
    """Upper ends of the intervals."""


class Figure(Config):
    """One figure."""

    kind: Literal["lines"] = "lines"
    """How it is drawn."""
    title: str
    """Its heading."""
    x_label: str
    """Name of the horizontal axis."""
    y_label: str
    """Name of the vertical axis."""
    x: list[Annotated[str | int | float, BeforeValidator(_place)]]
    """Names of bins, or numbers."""
    series: list[Series]
    """The lines."""

    @model_validator(mode="after")
    def _fits(self) -> Figure:
        for series in self.series:
            if (series.low is None) != (series.high is None):
                raise ConfigError(
                    f"{series.name!r} of {self.title!r} must have both `low` and `high`, or "
                    "neither."
                )
            for name, values in (("y", series.y), ("low", series.low), ("high", series.high)):
                if values is not None and len(values) != len(self.x):
                    raise ConfigError(
                        f"`{name}` of {series.name!r} in {self.title!r} must have {len(self.x)} "
                        f"values, one for each x, but has {len(values)}."
                    )
        return self


class Results(Config):
    """The content of `results.json`."""

    version: int = VERSION
    """Version of the file."""
    item: str
    """Which of the paper's tables or figures, e.g. "s2l"."""
    scale: str
    """smoke, small or paper."""
    title: str
    """Its heading."""
    headline: list[str] = Field(default_factory=list)
    """What a reader should remember, in two or three sentences; shown beside the first figure."""
    summary: list[str] = Field(default_factory=list)
    """What was found, one sentence each."""
    tables: list[Table] = Field(default_factory=list)
    """The tables."""
    figures: list[Figure] = Field(default_factory=list)
    """The figures."""
    runs: list[str] = Field(default_factory=list)
    """Folders of the runs, relative to that of the reproduction."""

    @field_validator("runs")
    @classmethod
    def _are_relative(cls, runs: list[str]) -> list[str]:
        for run in runs:
            if Path(run).is_absolute():
                raise ConfigError(
                    "a run must be given relative to the folder of its reproduction, but is "
                    f"{run!r}."
                )
        return runs

    @classmethod
    def read(cls, folder: Path) -> Results:
        """The results in the folder of a reproduction."""
        path = folder / RESULTS
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(
                f"{folder} must be the folder of a reproduction (with {RESULTS}), but is not."
            ) from None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {first_line(error)}.") from None
        if not isinstance(found, dict):
            raise RunError(f"{path} must hold an object, but holds {type(found).__name__}.")
        check_version(path, found.get("version", 1))
        try:
            return cls(**{**found, "version": VERSION})
        except ConfigError as error:
            raise RunError(f"{path}: {error}") from None

    def write(self, folder: Path) -> Path:
        """Write the results into the folder of a reproduction."""
        path = folder / RESULTS
        write_text(
            path,
            json.dumps(self.model_dump(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        )
        return path

    def run_folders(self, folder: Path) -> list[Path]:
        """Where the runs are."""
        return [folder / run for run in self.runs]
