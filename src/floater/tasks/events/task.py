"""The task `events`: predict type and time of the next event of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor, nn

from ...errors import ArgumentError
from ...printing import print_text
from ...runs.folder import RunFolder
from ...training.process import process_settings
from ...training.task import PredictionRequest
from ..timed.folds import divide
from ..timed.task import TimedTask
from ..understanding.measured import MeasuredData
from ..understanding.predicting import predict_all
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.resampling import ratio
from .config import EventsConfig
from .inputs import NOT_PREDICTED, EventInputs, Preparation, collate, prepare
from .model import EventModel
from .predictions import write_next_events
from .sequences import Events, EventsSplit, generated, read_events


def _root(measure: Measure) -> Measure:
    def root(table: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(measure(table, counts)))

    return root


MEASURES: dict[str, Measure] = {
    "log_likelihood": ratio(0, 4),
    "accuracy": ratio(1, 4, 100.0),
    "mae": ratio(2, 4),
    "rmse": _root(ratio(3, 4)),
}
"""Per event, from the sums of each sequence: so sequences are resampled, not events."""


class EventsTask(TimedTask[EventsSplit, EventInputs]):
    """Predict what happens next, and when."""

    config: EventsConfig
    config_class = EventsConfig
    model_class = EventModel
    less_is_better = frozenset({"mae", "rmse"})
    measures = MEASURES

    def __init__(self, config: EventsConfig) -> None:
        super().__init__(config)
        self._known: dict[str, EventsSplit] | None = None

    # Data -----------------------------------------------------------------------------------------

    def splits(self) -> dict[str, EventsSplit]:
        if self._known is None:
            data = self.config.data
            files = {"train": data.train, "valid": data.valid, "test": data.test}
            self._known = {
                name: self.read(path) for name, path in files.items() if path is not None
            } or self._divided()
        return self._known

    def _divided(self) -> dict[str, EventsSplit]:
        data = self.config.data
        if data.synthetic is not None:
            events, source = generated(data.synthetic), "generated sequences"
        else:
            assert data.sequences is not None
            events, source = self._events(data.sequences), str(data.sequences)
            _whole(source, events).check_lengths()
        return {
            name: EventsSplit(f"{source} ({name})", events, members)
            for name, members in divide(events.ids, [""] * len(events.ids), data).items()
        }

    def _events(self, path: Path, unit: str = "") -> Events:
        return read_events(path, self.config.data, self.config.clock, unit)

    def read(self, path: Path) -> EventsSplit:
        split = _whole(str(path), self._events(path))
        split.check_lengths()
        return split

    def prepare(self, folder: RunFolder) -> MeasuredData:
        splits = self.splits()
        preparation = prepare(splits, self.config)
        return MeasuredData(
            preparation,
            splits,
            self.encode(splits["train"], preparation, training=True),
            self.encode(splits["valid"], preparation, training=False),
        )

    def encode(self, split: EventsSplit, tokenizer: Any, *, training: bool) -> EventInputs:
        return EventInputs(split, tokenizer, self.config)

    def collate(self, tokenizer: Any) -> Callable[[Sequence[Any]], Batch]:
        return collate

    def warnings(self, model: nn.Module, data: MeasuredData) -> Sequence[str]:
        """What was changed in the data."""
        short, lines = data.train.short_gaps(), []
        if short:
            lines.append(
                f"{short:,} training gaps are shorter than {data.tokenizer.min_gap:g} (`min_gap`) "
                "and count as that long"
            )
        if len(data.train) > len(data.splits["train"]):
            lines.append(
                f"sequences of more than {self.config.data.max_events:,} events (`max_events`) are "
                f"cut: {len(data.splits['train']):,} training sequences are {len(data.train):,} "
                "inputs"
            )
        return lines

    # Model ----------------------------------------------------------------------------------------

    def to_json(self, prepared: Preparation) -> dict[str, Any]:
        head = self.config.head
        return {
            **prepared.to_json(),
            "components": head.components,
            "given_type": head.given_type,
            "gap_inputs": self.config.data.gap_inputs,
        }

    def from_json(self, saved: Mapping[str, Any]) -> Preparation:
        names = Preparation.__dataclass_fields__
        return Preparation(**{name: saved[name] for name in names})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        of_types, of_gaps = forward(model, batch)
        predicted = batch["labels"].ne(NOT_PREDICTED)
        total: Tensor = -(of_types + of_gaps)[predicted].sum()
        return total

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inner = _inner(model)
        states = inner.states(*(batch[name] for name in _SEEN))
        log_types = inner.log_types(states)
        median, mean = inner.expected(states, log_types)
        mixture = inner.gaps_given(states, batch["next_types"])
        return {
            "types": log_types.gather(-1, batch["next_types"].unsqueeze(-1)).squeeze(-1),
            "gaps": mixture.log_prob_standard(batch["next_gaps"]),
            "chosen": log_types.argmax(-1),
            "median": median,
            "mean": mean,
        }

    # Measures -------------------------------------------------------------------------------------

    def judge(
        self, split: EventsSplit, features: EventInputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        table = np.zeros((len(split), 5))
        named: dict[str, dict[str, list[Any]]] = {
            name: {"types": [], "gaps": []} for name in split.ids()
        }
        entries = list(named.values())
        known = features.preparation
        for number, piece in enumerate(features.pieces):
            gaps, types = features.gaps(number), features.types(number)[1:]
            found = {
                name: rows[number, : len(gaps)].astype(np.float64) for name, rows in outputs.items()
            }
            chosen = found["chosen"].astype(np.int64)
            likely = found["types"] + found["gaps"] + known.log_change(gaps)
            table[piece.member] += (
                likely.sum(),
                (chosen == types).sum(),
                np.abs(found["median"] - gaps).sum(),
                ((found["mean"] - gaps) ** 2).sum(),
                len(gaps),
            )
            entry = entries[piece.member]
            entry["types"] += [known.types[kind] for kind in chosen]
            entry["gaps"] += found["median"].tolist()
        return Predictions(named, table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        everything = np.ones((1, len(table)))
        return {
            name: float(measure(table, everything)[0]) for name, measure in self.measures.items()
        }

    def signature(self, measure: str, split: object) -> str:
        return f"{measure}|per event after the first|unit:{self.config.clock.name or 'raw'}"

    # Commands -------------------------------------------------------------------------------------

    def write_predictions(
        self, folder: RunFolder, request: PredictionRequest, console: Console
    ) -> None:
        """Write the next event of each sequence of a file; one event is enough to predict it."""
        for option, value in (("labels", request.labels), ("asked", request.asked)):
            if value is not None:
                raise ArgumentError(f"`--{option}` does not apply to {self.config.task}.")
        weights = self.weights_to_predict(folder, request)
        with process_settings():
            model, known = self.load(weights)
            split = _whole(str(request.data), self._events(request.data, request.unit))
            features = EventInputs(split, known, self.config, last=True)
            outputs = predict_all(NextEvent(self.config), model, features, known)
        count = write_next_events(request.out, split, known, self.config.data.columns, outputs)
        print_text(console, f"wrote {count:,} predictions to {request.out}")


class NextEvent(EventsTask):
    """The same task, of which only the event after the last one is predicted."""

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inner = _inner(model)
        states = inner.states(*(batch[name] for name in _SEEN))
        last = (batch["attention_mask"].sum(1) - 1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
        ends = states.gather(1, last).squeeze(1)
        log_types = inner.log_types(ends)
        median, mean = inner.expected(ends, log_types)
        return {"log_types": log_types, "median": median, "mean": mean}


_SEEN = ("times", "types", "gaps", "attention_mask")
"""What the model sees of a batch."""


def _inner(model: nn.Module) -> EventModel:
    """The model itself, also where several processes train it."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, EventModel)
    return inner


def _whole(name: str, events: Events) -> EventsSplit:
    """All sequences of a file."""
    return EventsSplit(name, events, np.arange(len(events.ids)))
