"""`floater predict` for series: one CSV row per series, or per asked value."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...errors import ArgumentError, DataError
from ...files import write_text
from ...printing import print_text
from ...runs.folder import RunFolder
from ...training.process import process_settings
from ...training.task import PredictionRequest
from ..timed.tables import ColumnTable, number_text
from ..timed.task import TimedTask
from ..understanding.predicting import predict_all
from .config import SeriesConfig
from .inputs import SeriesInputs
from .observations import Observations, SeriesSplit


def write_predictions(
    task: TimedTask[SeriesSplit, SeriesInputs],
    config: SeriesConfig,
    read: Callable[[SeriesConfig], SeriesSplit],
    folder: RunFolder,
    request: PredictionRequest,
    console: Console,
) -> None:
    """Predict for every series of a file, and write the predictions.

    Args:
        task: of the run.
        config: its settings.
        read: reads the series of the request, with the settings that it is given.
        folder: the run's.
        request: files and options.
        console: where to say what was written.
    """
    needs = [*config.data.static, *config.data.categories]
    if needs and request.labels is None:
        raise ArgumentError(
            f"`--labels` must be a file with the static columns {', '.join(needs)}, which the model"
            " was trained with, but was not given."
        )
    if config.head.asks != (request.asked is not None):
        what = (
            "must be a file with the ids, times and variables to predict"
            if (config.head.asks)
            else f"does not apply to {config.head.kind}"
        )
        raise ArgumentError(f"`--asked` {what}.")
    weights = task.weights_to_predict(folder, request)
    data = config.data.model_copy(update={"labels": request.labels})
    with process_settings():
        model, preparation = task.load(weights)
        split = read(config.model_copy(update={"data": data}))
        left_out = len(split.observations.ids) - len(split)
        if left_out:
            print_text(
                console,
                f"{left_out:,} of {len(split.observations.ids):,} series have no row in "
                f"{request.labels}, and no prediction",
            )
        asked = None
        if request.asked is not None:
            split, hidden = _without_future(split, config)
            if hidden:
                print_text(
                    console,
                    f"{hidden:,} observations later than `head.after` are left out, as in training",
                )
            split, asked = _with_questions(split, request.asked, config, preparation.variables)
        features = SeriesInputs(split, preparation, config, labelled=False, asked=asked)
        outputs = predict_all(task, model, features, preparation)
        check_finite(split, features, outputs)
    if config.head.kind == "classification":
        chances = np.exp(outputs["scores"].astype(np.float64))
        header = [data.columns.id, "predicted", *(f"p_{name}" for name in preparation.classes)]
        rows: Iterable[Sequence[Any]] = (
            [name, preparation.classes[row.argmax()], *(f"{chance:.6g}" for chance in row)]
            for name, row in zip(split.ids(), chances, strict=True)
        )
    elif config.head.kind == "regression":
        header = [data.columns.id, "predicted"]
        values = outputs["values"] * preparation.target_deviation + preparation.target_mean
        rows = ([name, f"{value:.6g}"] for name, value in zip(split.ids(), values, strict=True))
    else:
        header = data.columns.names()
        rows = _answers(split, features, outputs["values"])
    count = _write(request.out, header, rows)
    print_text(console, f"wrote {count:,} predictions to {request.out}")


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    write_text(path, text.getvalue())
    return count


def _answers(
    split: SeriesSplit, features: SeriesInputs, values: np.ndarray
) -> Iterable[Sequence[Any]]:
    """The asked values in the unit of their variable, in the order of id, time and file."""
    observations, preparation = split.observations, features.preparation
    number_of = {name: number for number, name in enumerate(preparation.variables)}
    for number, name in enumerate(split.ids()):
        rows = features.rows(number)
        asked = rows[features.asked(number, rows)]
        predicted, _ = features.answers(number, values[number])
        for row, value in zip(asked, predicted, strict=True):
            variable = observations.names[observations.variables[row]]
            known = number_of[variable]
            real = value * preparation.deviations[known] + preparation.means[known]
            yield [name, number_text(observations.times[row]), variable, f"{real:.6g}"]


def check_finite(
    split: SeriesSplit, features: SeriesInputs, outputs: Mapping[str, np.ndarray]
) -> None:
    """Refuse predictions that are no numbers, which values far from those of training lead to."""
    for values in outputs.values():
        for number in np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1)):
            count = 1 + len(features[int(number)]["times"])
            if values.ndim > 1 and features.asks and np.isfinite(values[number, :count]).all():
                continue  # padding
            name = split.ids()[int(number)]
            raise DataError(
                f"{split.name}: the values of every series must be of a size like those of "
                f"training, but the prediction for {name!r} is no finite number; check its values."
            )


def _without_future(split: SeriesSplit, config: SeriesConfig) -> tuple[SeriesSplit, int]:
    """The split without observations that a forecast must not see, and their number."""
    if config.head.after is None:
        return split, 0
    known = split.observations
    counts = np.diff(known.offsets)
    firsts = known.times[np.minimum(known.offsets[:-1], len(known.times) - 1)]
    origins = np.repeat(np.broadcast_to(config.clock.start(firsts), firsts.shape), counts)
    kept = known.times - origins <= config.head.after
    series = np.repeat(np.arange(len(known.ids)), counts)
    remaining = np.bincount(series[kept], minlength=len(known.ids))
    shorter = replace(
        known,
        offsets=np.concatenate(([0], np.cumsum(remaining))),
        times=known.times[kept],
        variables=known.variables[kept],
        values=known.values[kept],
        rows=known.rows[kept],
    )
    return replace(split, observations=shorter), int((~kept).sum())


def _with_questions(
    split: SeriesSplit, path: Path, config: SeriesConfig, model_variables: Sequence[str]
) -> tuple[SeriesSplit, np.ndarray]:
    """The split with asked points among its observations, and which ones these are."""
    columns, clock = config.data.columns, config.clock
    table = ColumnTable(path, [columns.id, columns.time, columns.variable])
    times, variables = table.numbers(columns.time), table.names(columns.variable)
    series = table.names(columns.id)
    known = split.observations
    number = {name: position for position, name in enumerate(known.ids)}
    owners = np.array([number.get(name, -1) for name in series.names])[series.codes]
    firsts = known.times[np.minimum(known.offsets[:-1], len(known.times) - 1)]
    origin = clock.start(firsts[np.maximum(owners, 0)])
    unknown = np.array([name not in model_variables for name in variables.names])
    after = -np.inf if config.head.after is None else origin + config.head.after
    for wrong, text in (
        (owners < 0, "the id must be one of the series of the data, but is {id!r}"),
        (times < origin, "the time must not be before the origin of the clock, but is"),
        (times <= after, "the time must be later than `head.after`, but is not"),
        (
            np.diff(known.offsets)[owners] == 0,
            "the series must have observations up to `head.after`, which a forecast starts from, "
            "but has none",
        ),
        (
            unknown[variables.codes],
            f"the variable must be one of the {len(model_variables)} that the model was trained "
            "on, but is {variable!r}",
        ),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            told = text.format(
                id=series.names[series.codes[row]], variable=variables.names[variables.codes[row]]
            )
            raise DataError(f"{table.where(row)}: {told}.")
    names = [*known.names, *(name for name in variables.names if name not in known.names)]
    code = np.array([names.index(name) for name in variables.names])[variables.codes]
    codes = np.concatenate((np.repeat(np.arange(len(known.ids)), np.diff(known.offsets)), owners))
    all_times = np.concatenate((known.times, times))
    is_asked = np.arange(len(all_times)) >= len(known.times)
    order = np.lexsort((all_times, codes))
    counts = np.bincount(codes, minlength=len(known.ids))
    joined = Observations(
        known.ids,
        np.concatenate(([0], np.cumsum(counts))),
        all_times[order],
        np.concatenate((known.variables, code.astype(np.int32)))[order],
        np.concatenate((known.values, np.zeros(len(times), dtype=np.float32)))[order],
        names,
        np.concatenate((known.rows, np.arange(len(times))))[order],
        known.table,
        known.dropped,
        known.sha256,
    )
    asked_series = np.unique(owners)
    members = split.members[np.isin(split.records.series[split.members], asked_series)]
    return replace(split, observations=joined, members=members), is_asked[order]
