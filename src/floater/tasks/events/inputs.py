"""Event sequences as inputs of the model: pieces of them, standardised gaps, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError
from ..timed.tables import number_first
from .config import EventsConfig
from .sequences import EventsSplit

NOT_PREDICTED = -100
"""Label of tokens after which there is nothing to predict."""


@dataclass(frozen=True)
class Preparation:
    """What was measured on the training set, saved with the model.

    Attributes:
        types: names of the types.
        center, spread: mean and deviation of the logarithms of the gaps.
        min_gap: what shorter gaps count as.
        span: the largest time of the clock.
    """

    types: list[str]
    center: float
    spread: float
    min_gap: float
    span: float

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def standard(self, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardised logarithms of gaps."""
        return np.asarray((np.log(np.maximum(gaps, self.min_gap)) - self.center) / self.spread)

    def log_change(self, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """log |dx/dg| of that map: what turns log-densities of x into those of gaps, per raw unit
        of time.
        """
        return np.asarray(-np.log(self.spread) - np.log(np.maximum(gaps, self.min_gap)))


def prepare(splits: Mapping[str, EventsSplit], config: EventsConfig) -> Preparation:
    """Measure the training set; types are those of all splits."""
    train = splits["train"]
    gaps = np.concatenate([np.diff(_times(train, number)) for number in range(len(train))])
    if not (gaps > 0).any():
        raise DataError(
            f"{train.name} must hold events at different times, but all events of each sequence "
            "have the same time."
        )
    min_gap = config.data.min_gap or float(gaps[gaps > 0].min())
    logs = np.log(np.maximum(gaps, min_gap))
    names = {name for split in splits.values() for name in split.events.names}
    pieces = EventInputs.pieces_of(train, config)
    ends = [_on_clock(train, piece, config)[-1] for piece in pieces]
    return Preparation(
        sorted(names, key=number_first),
        float(logs.mean()),
        float(logs.std()) or 1.0,
        min_gap,
        max(float(max(ends)), 1e-6),
    )


def _times(split: EventsSplit, number: int) -> NDArray[np.float64]:
    offsets, member = split.events.offsets, split.members[number]
    return split.events.times[offsets[member] : offsets[member + 1]]


@dataclass(frozen=True)
class Piece:
    """Events `first` to `last` (exclusive) of a file, which belong to one member of a split."""

    member: int
    first: int
    last: int


def _on_clock(split: EventsSplit, piece: Piece, config: EventsConfig) -> NDArray[np.float64]:
    raw = split.events.times[piece.first : piece.last]
    times: NDArray[np.float64] = config.clock.times(torch.from_numpy(raw.copy())).numpy()
    return times


class EventInputs:
    """The sequences of a split as inputs.

    Args:
        split: the sequences.
        preparation: what was measured on the training set.
        config: settings of the run.
        last: use the end of each sequence only, to predict what follows it.
    """

    def __init__(
        self,
        split: EventsSplit,
        preparation: Preparation,
        config: EventsConfig,
        *,
        last: bool = False,
    ) -> None:
        self._split, self.preparation, self._config = split, preparation, config
        self._codes = self._known_types()
        self.pieces = self.pieces_of(split, config, last=last)

    @staticmethod
    def pieces_of(split: EventsSplit, config: EventsConfig, *, last: bool = False) -> list[Piece]:
        """The inputs: whole sequences, or pieces of at most `max_events` that share one event."""
        limit, pieces = config.data.max_events, []
        for number, member in enumerate(split.members):
            begin, end = (int(offset) for offset in split.events.offsets[member : member + 2])
            if limit is None or end - begin <= limit:
                pieces.append(Piece(number, begin, end))
            elif last:
                pieces.append(Piece(number, end - limit, end))
            else:
                for first in range(begin, end - 1, limit - 1):
                    pieces.append(Piece(number, first, min(first + limit, end)))
        return pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def lengths(self) -> NDArray[np.int64]:
        """Events of each input."""
        return np.array([piece.last - piece.first for piece in self.pieces], dtype=np.int64)

    def gaps(self, number: int) -> NDArray[np.float64]:
        """Raw times between the events of an input [events - 1]."""
        piece = self.pieces[number]
        return np.diff(self._split.events.times[piece.first : piece.last])

    def types(self, number: int) -> NDArray[np.int64]:
        """Types of the events of an input, as the model knows them [events]."""
        piece = self.pieces[number]
        return np.asarray(self._codes[self._split.events.types[piece.first : piece.last]])

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {
            "times": _on_clock(self._split, self.pieces[number], self._config),
            "types": self.types(number),
            "gaps": self.preparation.standard(self.gaps(number)),
        }

    def short_gaps(self) -> int:
        """How many gaps are shorter than `min_gap`."""
        short = self.preparation.min_gap
        return sum(int((self.gaps(number) < short).sum()) for number in range(len(self)))

    def _known_types(self) -> NDArray[np.int64]:
        """The number that the model knows each type of the file by."""
        split, known = self._split, self.preparation.types
        events = split.events
        numbers = {name: number for number, name in enumerate(known)}
        codes = np.array([numbers.get(name, -1) for name in events.names], dtype=np.int64)
        unknown = codes[events.types] < 0
        if unknown.any():
            event = int(np.flatnonzero(unknown)[0])
            raise DataError(
                f"{events.where(event)}: the type must be one of the {len(known)} that the model "
                f"was trained on, but is {events.names[events.types[event]]!r}; remove the event."
            )
        return codes


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Inputs → a batch. Token i is event i; its label is the type of event i + 1."""
    shape = len(items), max(len(item["times"]) for item in items)
    times = torch.zeros(shape, dtype=torch.float64)
    types, next_types = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    gaps, next_gaps = torch.zeros(shape), torch.zeros(shape)
    mask = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, NOT_PREDICTED)
    for row, item in enumerate(items):
        count = len(item["times"])
        times[row, :count] = torch.from_numpy(item["times"])
        types[row, :count] = torch.from_numpy(item["types"])
        mask[row, :count] = 1
        between = torch.from_numpy(item["gaps"])
        gaps[row, 1:count] = between
        next_gaps[row, : count - 1] = between
        next_types[row, : count - 1] = types[row, 1:count]
        labels[row, : count - 1] = types[row, 1:count]
    return {
        "times": times,
        "types": types,
        "gaps": gaps,
        "attention_mask": mask,
        "next_types": next_types,
        "next_gaps": next_gaps,
        "labels": labels,
    }
