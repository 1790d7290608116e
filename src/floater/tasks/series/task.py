"""The task `series`: predict from irregular multivariate series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import DataError
from ...runs.folder import RunFolder
from ...training.task import EvaluationRequest, PredictionRequest
from ..timed.folds import divide
from ..timed.measures import auprc, auroc
from ..timed.tables import ColumnTable
from ..timed.task import TimedTask
from ..understanding.measured import MeasuredData
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.resampling import accuracy, mean, ratio
from .collating import NOT_ASKED, Collate
from .config import SeriesConfig
from .inputs import SeriesInputs
from .model import SeriesModel
from .observations import Records, SeriesSplit, read_observations, read_records, records_of
from .predictions import check_finite, write_predictions
from .preparation import Preparation, label_of, prepare
from .synthetic import CLASSES, generate


def _without_record(split: SeriesSplit) -> int:
    """Number of series that have observations but no row in the file of labels."""
    linked = set(split.records.series.tolist())
    return len(split.observations.ids) - len(linked - {-1})


def _accuracy(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Percentage of rows (score, label, prediction) whose prediction is right."""
    return accuracy(table[:, [2, 1]], counts)


BINARY: dict[str, Measure] = {"auroc": auroc, "auprc": auprc, "accuracy": _accuracy}
SEVERAL: dict[str, Measure] = {"accuracy": _accuracy, "loss": mean(0, 1.0)}
ERRORS: dict[str, Measure] = {"mse": ratio(0, 2), "mae": ratio(1, 2)}


class SeriesTask(TimedTask[SeriesSplit, SeriesInputs]):
    """Classify series, predict a number for each, or predict values at asked times."""

    config: SeriesConfig
    config_class = SeriesConfig
    model_class = SeriesModel
    less_is_better = frozenset({"mse", "mae", "loss"})
    evaluation_options = TimedTask.evaluation_options | {"labels"}

    def __init__(self, config: SeriesConfig) -> None:
        super().__init__(config)
        self.more_is_better = config.head.kind == "classification"
        self._known: dict[str, SeriesSplit] | None = None
        self._unlabelled = 0  # series of the file read last

    # Data -----------------------------------------------------------------------------------------

    def splits(self) -> dict[str, SeriesSplit]:
        if self._known is None:
            whole = self._whole()
            stratified = self.config.head.kind == "classification"
            ids, labels = whole.ids(), whole.records.labels
            strata = [labels[i] if stratified and labels else "" for i in whole.members]
            self._known = {
                name: SeriesSplit(
                    f"{whole.name} ({name})",
                    whole.observations,
                    whole.records,
                    whole.members[numbers],
                )
                for name, numbers in divide(ids, strata, self.config.data).items()
            }
        return self._known

    def _whole(self) -> SeriesSplit:
        """All series of the config."""
        data = self.config.data
        if data.synthetic is not None:
            observations, labels = generate(data.synthetic)
            records = records_of(observations, labels)
            return SeriesSplit("generated series", observations, records, np.arange(len(labels)))
        assert data.observations is not None
        return self.read(data.observations)

    def read(self, path: Path, unit: str = "", *, labelled: bool = True) -> SeriesSplit:
        """Read a file of observations; labels and static columns are in the file of the config.

        Args:
            path: the file.
            unit: the unit that the user states for its times.
            labelled: whether labels are needed; without, all series of the file are read.
        """
        data, head = self.config.data, self.config.head
        observations = read_observations(path, data.columns, data.missing, self.config.clock, unit)
        whole = SeriesSplit(str(path), observations, records_of(observations), np.empty(0, int))
        label = data.label if labelled and not head.asks else ""
        if data.labels is not None and (label or data.static or data.categories):
            records = read_records(data.labels, data, observations, label)
            whole = SeriesSplit(str(path), observations, records, np.empty(0, int))
        members = np.arange(len(whole.records.ids))
        first, last = SeriesSplit("", observations, whole.records, members).starts()
        needed = self._fewest(observations.times, first, last) if labelled else last > first
        if path != data.observations or not labelled:  # a file of the user's: only what is in it
            needed &= whole.records.series >= 0
        if not needed.any():
            raise DataError(
                f"{path} must hold series that can be used, but none of its "
                f"{len(observations.ids):,} {self._reason(whole.records, labelled)}."
            )
        split = SeriesSplit(str(path), observations, whole.records, members[needed])
        self._unlabelled = _without_record(split) if label else 0
        return split

    def _reason(self, records: Records, labelled: bool) -> str:
        """Why no series can be used."""
        data, head = self.config.data, self.config.head
        if (records.series < 0).all():
            return f"series has a row in {data.labels}; compare the ids"
        if labelled and head.after is not None:
            return "series has observations before and after `head.after`"
        return "series has two observations" if labelled else "series has an observation"

    def _fewest(self, times: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Which series have enough observations to ask about some of them and to see others."""
        head, clock = self.config.head, self.config.clock
        if not head.asks:
            return np.ones(len(first), dtype=bool)
        if head.after is None:
            return np.asarray(last - first >= 2)
        some = last > first
        begin, end = np.where(some, first, 0), np.where(some, last - 1, 0)
        origin = clock.start(times[begin])
        seen, asked = times[begin] - origin <= head.after, times[end] - origin > head.after
        return np.asarray(some & seen & asked)

    def prepare(self, folder: RunFolder) -> MeasuredData:
        splits = self.splits()
        preparation = prepare(splits["train"], self.config)
        self._check_classes(splits, preparation)
        return MeasuredData(
            preparation,
            splits,
            self.encode(splits["train"], preparation, training=True),
            self.encode(splits["valid"], preparation, training=False),
        )

    def _check_classes(self, splits: Mapping[str, SeriesSplit], prepared: Preparation) -> None:
        """Refuse a set in which areas under curves are undefined."""
        if len(prepared.classes) != 2:
            return
        for split in splits.values():
            found = {label_of(split, member) for member in split.members}
            if len(found) < 2:
                classes = " and ".join(prepared.classes)
                raise DataError(
                    f"{split.name} must have series of both classes, {classes}, but has only "
                    f"{', '.join(found)}; give more data, or fewer folds."
                )

    def encode(self, split: SeriesSplit, tokenizer: Any, *, training: bool) -> SeriesInputs:
        return SeriesInputs(split, tokenizer, self.config, training=training)

    def collate(self, tokenizer: Any) -> Callable[[Sequence[Any]], Batch]:
        return Collate(len(tokenizer.variables), self.config.data.tokens == "times")

    def warnings(self, model: nn.Module, data: MeasuredData) -> Sequence[str]:
        """What was left out of the data."""
        settings, lines = self.config.data, []
        whole: SeriesSplit = data.splits["train"]
        if whole.observations.dropped:
            lines.append(
                f"{whole.observations.dropped:,} observations are missing values (`missing`) and "
                "are left out"
            )
        if data.train.truncated:
            which = "the last" if settings.keep == "last" else "evenly spaced"
            lines.append(
                f"{data.train.truncated:,} of {len(data.train):,} training series have more than "
                f"{settings.max_observations:,} observations (`max_observations`); {which} "
                f"{settings.max_observations:,} of each are used (`keep`)"
            )
        without = int((whole.records.series < 0).sum())
        if without and not self.config.head.asks:
            lines.append(f"{without:,} series have a label but no observation, and are used empty")
        unused = _without_record(whole)
        if unused:
            lines.append(f"{unused:,} series have observations but no label, and are not used")
        return lines

    # Model ----------------------------------------------------------------------------------------

    def to_json(self, prepared: Preparation) -> dict[str, Any]:
        head = self.config.head
        sizes = {
            "variables": len(prepared.variables),
            "statics": prepared.statics,
            "outputs": len(prepared.classes) if head.kind == "classification" else 1,
            "by_time": self.config.data.tokens == "times",
            "asks": head.asks,
            "pool": head.pool,
        }
        return {**prepared.to_json(), "sizes": sizes}

    def from_json(self, saved: Mapping[str, Any]) -> Preparation:
        return Preparation(**{name: value for name, value in saved.items() if name != "sizes"})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs, labels = forward(model, batch), batch["labels"]
        if self.config.head.kind == "classification":
            return F.cross_entropy(
                outputs, labels, weight=self._weights(model, outputs), reduction="sum"
            )
        if self.config.head.asks:
            asked = labels.ne(NOT_ASKED)
            return F.mse_loss(outputs[asked], labels[asked], reduction="sum")
        return F.mse_loss(outputs[:, 0], labels, reduction="sum")

    def _weights(self, model: Any, outputs: Tensor) -> Tensor | None:
        """Weights of the classes; their mean over the training set is 1."""
        if not self.config.head.balance:
            return None
        config = getattr(model, "module", model).config
        counts = outputs.new_tensor(config.prepared["frequencies"]).clamp(min=1)
        return counts.sum() / (len(counts) * counts)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = forward(model, batch)
        if self.config.head.kind == "classification":
            return {"scores": outputs.log_softmax(-1)}
        return {"values": outputs if self.config.head.asks else outputs[:, 0]}

    # Measures -------------------------------------------------------------------------------------

    @property
    def measures(self) -> Mapping[str, Measure]:
        if self.config.head.kind != "classification":
            return ERRORS
        return BINARY if self._classes == 2 else SEVERAL

    @cached_property
    def _classes(self) -> int:
        """Number of classes, which decides on the measures; the file of the labels says it."""
        data = self.config.data
        if data.labels is None:
            return len(CLASSES)
        labels = ColumnTable(data.labels, [data.label]).texts(data.label)
        return len({label for label in labels if label})

    def judge(
        self, split: SeriesSplit, features: SeriesInputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        check_finite(split, features, outputs)
        if self.config.head.kind == "classification":
            return self._judge_classes(split, features, outputs["scores"])
        if self.config.head.asks:
            return self._judge_asked(split, features, outputs["values"])
        deviation = features.preparation.target_deviation
        values = outputs["values"] * deviation + features.preparation.target_mean
        errors = deviation * (outputs["values"] - np.array(features.labels, dtype=np.float64))
        table = np.column_stack((errors**2, np.abs(errors), np.ones(len(errors))))
        named = dict(zip(split.ids(), values.tolist(), strict=True))
        return Predictions(named, table)

    def _judge_classes(
        self, split: SeriesSplit, features: SeriesInputs, scores: np.ndarray
    ) -> Predictions:
        labels = np.array(features.labels)
        chosen = scores.argmax(1)
        classes = features.preparation.classes
        if len(classes) == 2:
            first = np.exp(scores[:, 1].astype(np.float64))
        else:
            first = -scores[np.arange(len(labels)), labels].astype(np.float64)
        named = {
            name: {"predicted": classes[number], "probabilities": np.exp(row).tolist()}
            for name, number, row in zip(split.ids(), chosen, scores, strict=True)
        }
        return Predictions(named, np.column_stack((first, labels, chosen)).astype(np.float64))

    def _judge_asked(
        self, split: SeriesSplit, features: SeriesInputs, values: np.ndarray
    ) -> Predictions:
        rows, named = [], {}
        for number, name in enumerate(split.ids()):
            predicted, true = features.answers(number, values[number])
            errors = predicted.astype(np.float64) - true
            rows.append(((errors**2).sum(), np.abs(errors).sum(), len(errors)))
            named[name] = predicted.tolist()
        return Predictions(named, np.array(rows, dtype=np.float64))

    def scores(self, table: np.ndarray) -> dict[str, float]:
        everything = np.ones((1, len(table)))
        measures = self.measures
        if measures is BINARY and len(np.unique(table[:, 1])) < 2:  # areas are undefined
            measures = {"accuracy": _accuracy}
        return {name: float(measure(table, everything)[0]) for name, measure in measures.items()}

    def signature(self, measure: str, split: object) -> str:
        return f"{measure}|{self.config.head.kind}"

    # Commands -------------------------------------------------------------------------------------

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        used = self
        if request.labels is not None:
            data = self.config.data.model_copy(update={"labels": request.labels})
            used = self.with_config(self.config.model_copy(update={"data": data}))
            used.__dict__["_classes"] = self._classes  # those of the model, not of the file
        used._unlabelled = 0
        TimedTask.evaluate(used, folder, request, console)
        if used._unlabelled:
            console.print(f"{used._unlabelled:,} series have no label, and were not evaluated")

    @torch.no_grad()
    def write_predictions(
        self, folder: RunFolder, request: PredictionRequest, console: Console
    ) -> None:
        def read(config: SeriesConfig) -> SeriesSplit:
            return self.with_config(config).read(request.data, request.unit, labelled=False)

        write_predictions(self, self.config, read, folder, request, console)
