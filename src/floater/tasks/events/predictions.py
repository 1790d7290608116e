"""`floater predict` for events: one CSV row per sequence, with the event that follows it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...files import write_text
from ..timed.tables import number_text
from .config import Columns
from .inputs import Preparation
from .sequences import EventsSplit


def write_next_events(
    path: Path,
    split: EventsSplit,
    known: Preparation,
    columns: Columns,
    outputs: Mapping[str, np.ndarray],
) -> int:
    """Write the next event of each sequence, and return their number.

    The time is the median of its density, in the unit of the raw times; `expected_…` is its mean.

    Args:
        path: the CSV file.
        split: the sequences.
        known: names of the types.
        columns: names of the columns for id, time and type.
        outputs: of the model, [sequences, …].
    """
    lasts = split.events.times[split.events.offsets[1:] - 1][split.members]
    chances = np.exp(outputs["log_types"].astype(np.float64))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = [columns.id, columns.time, f"expected_{columns.time}", columns.type]
    writer.writerow([*header, *(f"p_{name}" for name in known.types)])
    for number, name in enumerate(split.ids()):
        numbers = [outputs[key][number] for key in ("median", "mean", "log_types")]
        if not all(np.isfinite(each).all() for each in numbers):
            raise DataError(
                f"{split.name}: the times of every sequence must be of a size like those of "
                f"training, but the prediction for {name!r} is no finite number; check its times."
            )
        times = (lasts[number] + float(outputs[which][number]) for which in ("median", "mean"))
        row = chances[number]
        writer.writerow(
            [
                name,
                *map(number_text, times),
                known.types[int(row.argmax())],
                *(f"{chance:.6g}" for chance in row),
            ]
        )
    write_text(path, text.getvalue())
    return len(split)
