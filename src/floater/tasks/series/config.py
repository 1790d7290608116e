"""Settings of the task `series`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Config, Count, Positive
from ...training.settings import Finite, Share
from ..timed.config import TimedConfig
from ..timed.folds import SplitConfig

HeadKind = Literal["classification", "regression", "forecasting", "imputation"]


class Columns(Config):
    """Names of the columns of the observations."""

    id: str = "id"
    time: str = "time"
    variable: str = "variable"
    value: str = "value"

    def names(self) -> list[str]:
        """All of them."""
        return [self.id, self.time, self.variable, self.value]


class Phases(Config):
    """Generated series that only real times can tell apart: sin(2πt/period), or its negative.

    Every series starts at a random time, uniform over one period. Shifted by half a period, the one
    class is the other, so the values in their order say nothing about the class.
    """

    series: Annotated[int, Field(ge=10, le=10**6)] = 2400
    observations: Annotated[int, Field(ge=2, le=10**5)] = 16
    """Of each series."""
    period: Positive = 1.0
    duration: Positive = 2.0
    """Time from the first observation within which the others lie, at random."""
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    """Standard deviation of what is added to every value."""


class SeriesData(SplitConfig):
    """Where the series are, and how they become tokens."""

    observations: Path | None = None
    """Long format, .csv, .csv.gz or .parquet: one row per observation, in any order."""
    labels: Path | None = None
    """One row per series: its id, its label and its static columns."""
    synthetic: Phases | None = None
    """Generated series, instead of files."""
    columns: Columns = Columns()
    label: str = "label"
    """Column of `labels` with the class or the number to predict."""
    static: tuple[str, ...] = ()
    """Columns of `labels` with numbers that describe the whole series; empty cells are missing."""
    categories: tuple[str, ...] = ()
    """The same, with names of categories."""
    missing: tuple[Finite, ...] = ()
    """Numbers that stand for a missing value, in observations and static columns."""
    clip: Positive | None = None
    """Values are cut off at this many standard deviations; default: they are not."""
    max_observations: Count | None = None
    """Longest series; of a longer one some observations are used, and the run says how many
    series that concerns.
    """
    keep: Literal["last", "even"] = "last"
    """Which observations of a longer series are used: the last ones, or evenly spaced ones."""
    drop: Share = 0.0
    """While training, this share of the observations of each series is left out at random, anew in
    every epoch: against overfitting on few series. Not for forecasting and imputation.
    """
    tokens: Literal["observations", "times"] = "observations"
    """One token per observation; or one per time, with the values of all variables at that time,
    which is shorter. Of repeated observations of a variable at one time, the last one counts.
    """

    @model_validator(mode="after")
    def _has_a_source(self) -> SeriesData:
        if (self.observations is None) == (self.synthetic is None):
            raise ValueError("give either `observations`, a file, or `synthetic`")
        if self.labels is None and (self.static or self.categories):
            raise ValueError("`static` and `categories` are columns of `labels`, which is missing")
        described = [*self.static, *self.categories]
        for name in described:
            if described.count(name) > 1:
                raise ValueError(f"`static` and `categories` must name {name!r} once")
            if name in (self.label, self.columns.id):
                what = "label, which is predicted" if name == self.label else "id"
                raise ValueError(f"`static` and `categories` must not hold the {what}: {name!r}")
        if len(set(self.columns.names())) < len(self.columns.names()):
            raise ValueError("`columns` must be different columns of the file")
        return self


class HeadConfig(Config):
    """What is predicted."""

    kind: HeadKind = "classification"
    """A class or a number for the whole series; or the values of variables at later times
    (forecasting) or of hidden observations (imputation).
    """
    balance: bool = False
    """Classification: weigh classes by the inverse of their frequency."""
    after: Positive | None = None
    """Forecasting: observations later than this after the origin of the clock, in the unit of the
    raw times, are predicted from those before.
    """
    hidden_share: Annotated[Share, Field(gt=0)] = 0.2
    """Imputation: share of the observations of a series that are hidden and predicted."""
    pool: Literal["mean", "first"] = "mean"
    """What represents a series: the mean of its tokens, or the first one, which stands for the
    whole series.
    """

    @property
    def asks(self) -> bool:
        """Whether values at asked times are predicted."""
        return self.kind in ("forecasting", "imputation")

    @model_validator(mode="after")
    def _knows_the_future(self) -> HeadConfig:
        if (self.kind == "forecasting") != (self.after is not None):
            raise ValueError("`after` must be given for forecasting, and for nothing else")
        return self


class SeriesConfig(TimedConfig):
    """The settings of one run."""

    task: Literal["series"] = "series"
    data: SeriesData
    head: HeadConfig = HeadConfig()

    @model_validator(mode="after")
    def _head_fits(self) -> SeriesConfig:
        labelled = self.data.labels is not None or self.data.synthetic is not None
        if not self.head.asks and not labelled:
            raise ValueError(f"`data.labels` must be given for {self.head.kind}")
        if self.head.asks and self.data.drop:
            raise ValueError(
                f"`data.drop` must be 0 for {self.head.kind}, which hides values itself"
            )
        if self.head.asks and self.clock.learned == "features":
            raise ValueError(
                "`clock.learned: features` must not be used for forecasting and imputation, where "
                "asked times would move one another; write `learned: time`"
            )
        return self
