"""What is measured on the training series, and saved with the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...times import Clock
from ..timed.tables import number_first
from .config import SeriesConfig
from .observations import Observations, SeriesSplit


@dataclass(frozen=True)
class Preparation:
    """What was measured on the training set, saved with the model.

    Attributes:
        variables: names of the variables.
        means, deviations: of their values.
        classes: names of the classes, for classification.
        frequencies: how many training series each class has.
        target_mean, target_deviation: of the labels, for regression.
        static_means, static_deviations: of the static numbers.
        categories: names of the categories of each static column.
        span: the largest time of the clock.
    """

    variables: list[str]
    means: list[float]
    deviations: list[float]
    classes: list[str] = field(default_factory=list)
    frequencies: list[int] = field(default_factory=list)
    target_mean: float = 0.0
    target_deviation: float = 1.0
    static_means: list[float] = field(default_factory=list)
    static_deviations: list[float] = field(default_factory=list)
    categories: dict[str, list[str]] = field(default_factory=dict)
    span: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @property
    def statics(self) -> int:
        """Numbers that describe a whole series: values and flags of static columns, categories."""
        return 2 * len(self.static_means) + sum(map(len, self.categories.values()))


def prepare(train: SeriesSplit, config: SeriesConfig) -> Preparation:
    """Measure the training set."""
    observations, records, members = train.observations, train.records, train.members
    first, last = train.starts()
    chosen = np.zeros(len(observations.times) + 1, dtype=np.int8)
    np.add.at(chosen, first, 1)
    np.add.at(chosen, last, -1)
    inside = np.cumsum(chosen[:-1], dtype=np.int8).astype(bool)
    variables, values = observations.variables[inside], observations.values[inside]
    count = np.bincount(variables, minlength=len(observations.names))
    means, deviations = _moments(values.astype(np.float64), variables, count)
    labels: dict[str, Any] = {}
    if config.head.kind == "classification":
        found = [label_of(train, member) for member in members]
        everywhere = records.labels or []
        classes = sorted({label for label in everywhere if label}, key=number_first)
        if len(classes) < 2:
            raise DataError(
                f"{train.name} must have at least two classes in `{config.data.label}`, but has "
                f"{', '.join(classes) or 'none'}."
            )
        labels = {
            "classes": classes,
            "frequencies": [found.count(name) for name in classes],
        }
    elif config.head.kind == "regression":
        numbers = np.array([target_of(train, member) for member in members])
        labels = {
            "target_mean": float(numbers.mean()),
            "target_deviation": float(numbers.std()) or 1.0,
        }
    static = np.ma.masked_invalid(records.numbers[members])
    ends = np.where(last > first, last - 1, 0)
    return Preparation(
        list(observations.names),
        means.tolist(),
        deviations.tolist(),
        static_means=static.mean(0).filled(0.0).tolist(),
        static_deviations=np.where(
            static.std(0).filled(1.0) > 0, static.std(0).filled(1.0), 1.0
        ).tolist(),
        categories={
            name: sorted({cells[member] for member in members} - {""}, key=number_first)
            for name, cells in records.categories.items()
        },
        span=_span(observations, first, ends, config.clock),
        **labels,
    )


def _moments(
    values: NDArray[np.float64], variables: NDArray[np.int32], count: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each variable; 0 and 1 where there is nothing to measure."""
    some = np.maximum(count, 1)
    means = np.bincount(variables, values, len(count)) / some
    squares = np.bincount(variables, (values - means[variables]) ** 2, len(count)) / some
    return means, np.where(squares > 0, np.sqrt(squares), 1.0)


def _span(
    observations: Observations, first: NDArray[np.int64], last: NDArray[np.int64], clock: Clock
) -> float:
    times = observations.times
    if not len(times):
        return 1.0
    longest = float((times[last] - clock.start(times[first])).max())
    base = float(clock.start(0.0))
    return max(float(clock.times([base, base + longest])[-1]), 1e-6)


def label_of(split: SeriesSplit, member: int) -> str:
    """The label of a record; it must not be empty."""
    label = split.records.labels[member] if split.records.labels is not None else ""
    if not label:
        raise DataError(
            f"{split.records.where(member)}: the label must not be empty, but is; fill it in, or "
            "remove the row."
        )
    return label


def target_of(split: SeriesSplit, member: int) -> float:
    """The label of a record as a finite number."""
    text = label_of(split, member)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(
            f"{split.records.where(member)}: the label must be a finite number for regression, but "
            f"is {text!r}."
        )
    return number
