"""Settings of the task `events`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Config, Count, NotNegative, Positive
from ..timed.config import TimedConfig
from ..timed.folds import SplitConfig


class Columns(Config):
    """Names of the columns of a CSV or Parquet file, one row per event."""

    id: str = "id"
    time: str = "time"
    type: str = "type"

    def names(self) -> list[str]:
        """All of them."""
        return [self.id, self.time, self.type]


class Keys(Config):
    """Keys of a JSON lines file, one object per sequence."""

    id: str = "id"
    """May be missing: the number of the line takes its place."""
    times: str = "times"
    types: str = "types"


class Hawkes(Config):
    """Generated sequences of a Hawkes process, whose log-likelihood is known.

    The rate of type k is base[k] + Σ excitation[k][j]·decay·exp(-decay·(t - t_i)) over all earlier
    events i, of type j. With all excitations 0 it is a Poisson process.
    """

    sequences: Annotated[int, Field(ge=10, le=10**6)] = 1000
    events: Annotated[int, Field(ge=2, le=10**4)] = 30
    """Of each sequence."""
    base: tuple[Positive, ...] = (0.2, 0.4)
    """Rates without any earlier event, one per type."""
    excitation: tuple[tuple[NotNegative, ...], ...] = ((0.6, 0.1), (0.0, 0.4))
    """Mean number of further events of type k (row) that an event of type j (column) causes."""
    decay: Positive = 2.0

    @model_validator(mode="after")
    def _fits(self) -> Hawkes:
        count = len(self.base)
        if not count or [len(row) for row in self.excitation] != [count] * count:
            raise ValueError(
                f"`excitation` must have {count} rows of {count} numbers, one for each rate of "
                "`base`"
            )
        return self


class EventsData(SplitConfig):
    """Where the sequences are.

    Either one file, which is divided by the hash of the ids (`sequences`), or three (`train`,
    `valid` and `test`). Names end in .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet.
    """

    sequences: Path | None = None
    """All sequences in one file."""
    train: Path | None = None
    valid: Path | None = None
    test: Path | None = None
    synthetic: Hawkes | None = None
    """Generated sequences, instead of files."""
    columns: Columns = Columns()
    keys: Keys = Keys()
    max_events: Annotated[int, Field(ge=2)] | None = None
    """Longest input. A longer sequence is cut into pieces; each one starts with the last event of
    the one before, so that every event after the first is predicted once.
    """
    min_gap: Positive | None = None
    """In the unit of the raw times. Shorter gaps, also those of zero, count as this one, because a
    density of log-times needs gaps above zero. Default: the shortest gap above zero of the training
    data.
    """
    gap_inputs: bool = False
    """Also give the model the time since the event before, as a feature of each event. It then
    knows times whatever the encoder.
    """

    @model_validator(mode="after")
    def _has_a_source(self) -> EventsData:
        files = [self.train, self.valid, self.test]
        given = sum(path is not None for path in files)
        if given not in (0, 3):
            raise ValueError("`train`, `valid` and `test` must be given together")
        sources = sum((self.sequences is not None, given == 3, self.synthetic is not None))
        if sources != 1:
            raise ValueError(
                "give one of `sequences` (a file), `train`, `valid` and `test` (files), or "
                "`synthetic`"
            )
        if given and self.folds is not None:
            raise ValueError("`folds` divide `sequences`; three files are divided already")
        return self


class EventHead(Config):
    """How the next event is predicted: p(type | history) · p(gap | history, type)."""

    components: Count = 16
    """Of the mixture of log-normal densities of the time to the next event."""
    given_type: bool = True
    """Whether the density of the gap depends on the next type; otherwise both are independent given
    the history.
    """


class EventsConfig(TimedConfig):
    """The settings of one run."""

    task: Literal["events"] = "events"
    data: EventsData
    head: EventHead = EventHead()
