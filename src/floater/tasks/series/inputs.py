"""Series as inputs of the model: chosen, standardised, with their times on the clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from .config import HeadConfig, SeriesConfig
from .observations import SeriesSplit
from .preparation import Preparation, label_of, target_of


class SeriesInputs:
    """The series of a split as inputs.

    Args:
        split: the series.
        preparation: what was measured on the training set.
        config: settings of the run.
        training: whether hidden observations change from epoch to epoch.
        labelled: whether labels are known.
        asked: for predictions, which observations are asked about [observations of the file].
    """

    def __init__(
        self,
        split: SeriesSplit,
        preparation: Preparation,
        config: SeriesConfig,
        *,
        training: bool = False,
        labelled: bool = True,
        asked: NDArray[np.bool_] | None = None,
    ) -> None:
        self._split, self.preparation, self._config = split, preparation, config
        self._training, self._asked = training, asked
        self._codes = self._known_variables()
        self._means = np.array(preparation.means, dtype=np.float32)
        self._deviations = np.array(preparation.deviations, dtype=np.float32)
        self._first, self._last = split.starts()
        self._statics = _statics(split, preparation)
        self.labels = _labels(split, preparation, config.head) if labelled else None
        self._epoch = 0
        self.truncated = 0
        limit = config.data.max_observations
        if limit is not None:
            self.truncated = int((self._last - self._first > limit).sum())

    def set_epoch(self, epoch: int) -> None:
        """Hide other observations than in the epoch before."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._split)

    @property
    def asks(self) -> bool:
        """Whether values at asked times are predicted."""
        return self._config.head.asks

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each input, the one of the whole series included."""
        counts = self._last - self._first
        if self._config.data.max_observations is not None:
            counts = np.minimum(counts, self._config.data.max_observations)
        if self._config.data.tokens == "times" and not self._config.head.asks:
            counts = np.minimum(counts, self._distinct_times())
        return np.asarray(1 + counts, dtype=np.int64)

    def _distinct_times(self) -> NDArray[np.int64]:
        times = self._split.observations.times
        changes = np.concatenate(([0], np.cumsum(times[1:] != times[:-1]))) if len(times) else times
        some = self._last > self._first
        ends = np.where(some, self._last - 1, 0), np.where(some, self._first, 0)
        return np.where(some, 1 + changes[ends[0]] - changes[ends[1]], 0)

    def __getitem__(self, number: int) -> dict[str, Any]:
        observations = self._split.observations
        rows = self.rows(number)
        if self._training and self._config.data.drop:
            seed = [self._config.seed, self._epoch, number]
            kept = np.random.default_rng(seed).random(len(rows)) >= self._config.data.drop
            rows = rows[kept]
        times = observations.times[rows]
        codes = self._codes[observations.variables[rows]]
        values = (observations.values[rows] - self._means[codes]) / self._deviations[codes]
        if self._config.data.clip is not None:
            values = np.clip(values, -self._config.data.clip, self._config.data.clip)
        clock = self._config.clock
        first = float(observations.times[self._first[number]]) if len(rows) else 0.0
        item = {
            "times": clock.times(torch.from_numpy(times), first).numpy() if len(rows) else times,
            "variables": codes,
            "values": values,
            "static": self._statics[number],
        }
        if self._config.head.asks:
            item["asked"] = self.asked(number, rows)
        elif self.labels is not None:
            item["label"] = self.labels[number]
        return item

    def rows(self, number: int) -> NDArray[np.int64]:
        """The observations of an input, by their number."""
        rows = np.arange(self._first[number], self._last[number])
        limit = self._config.data.max_observations
        if limit is None or len(rows) <= limit:
            return rows
        if self._config.data.keep == "last":
            return rows[-limit:]
        return rows[np.linspace(0, len(rows) - 1, limit).round().astype(np.int64)]

    def asked(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the observations of an input are predicted from the others."""
        head, clock = self._config.head, self._config.clock
        if self._asked is not None:
            return self._asked[rows]
        times = self._split.observations.times[rows]
        if head.kind == "forecasting":
            assert head.after is not None
            first = self._split.observations.times[self._first[number]]
            return np.asarray(times - clock.start(first) > head.after)
        epoch = self._epoch + 1 if self._training else 0
        seed = [self._config.seed if self._training else 0, epoch, int(self._first[number])]
        hidden = np.zeros(len(rows), dtype=bool)
        count = min(max(1, round(head.hidden_share * len(rows))), len(rows) - 1)
        hidden[np.random.default_rng(seed).permutation(len(rows))[:count]] = True
        return hidden

    def answers(
        self, number: int, outputs: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What was predicted for the asked observations of an input, in their order, and the truth;
        both standardised.
        """
        item = self[number]
        asked, count = item["asked"], len(item["times"])
        if self._config.data.tokens == "times":
            seen = len(np.unique(item["times"][~asked]))
            predicted = outputs[1 + seen : 1 + seen + int(asked.sum())]
        else:
            predicted = outputs[1 : 1 + count][asked]
        return predicted, item["values"][asked]

    def _known_variables(self) -> NDArray[np.int64]:
        """The number that the model knows each variable of the file by."""
        observations, known = self._split.observations, self.preparation.variables
        numbers = {name: number for number, name in enumerate(known)}
        codes = np.array([numbers.get(name, -1) for name in observations.names], dtype=np.int64)
        if (codes < 0).any():
            row = int(np.flatnonzero(codes[observations.variables] < 0)[0])
            name = observations.names[observations.variables[row]]
            raise DataError(
                f"{observations.where(row)}: the variable must be one of the {len(known)} that the "
                f"model was trained on, but is {name!r}; remove its rows."
            )
        return codes


def _statics(split: SeriesSplit, preparation: Preparation) -> NDArray[np.float32]:
    """What describes each series as a whole [members, statics]."""
    numbers = split.records.numbers[split.members]
    standard = (numbers - preparation.static_means) / preparation.static_deviations
    columns = [np.nan_to_num(standard), np.isnan(standard)]
    for name, known in preparation.categories.items():
        cells = split.records.categories[name]
        for category in known:
            columns.append(np.array([[cells[i] == category] for i in split.members]))
    return np.concatenate(columns, 1).astype(np.float32).reshape(len(split), preparation.statics)


def _labels(split: SeriesSplit, preparation: Preparation, head: HeadConfig) -> list[Any] | None:
    if head.kind == "classification":
        numbers = {name: number for number, name in enumerate(preparation.classes)}
        labels = []
        for member in split.members:
            label = label_of(split, member)
            if label not in numbers:
                raise DataError(
                    f"{split.records.where(member)}: the label must be one of "
                    f"{', '.join(preparation.classes)}, but is {label!r}."
                )
            labels.append(numbers[label])
        return labels
    if head.kind == "regression":
        mean, deviation = preparation.target_mean, preparation.target_deviation
        return [(target_of(split, member) - mean) / deviation for member in split.members]
    return None
