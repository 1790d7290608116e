"""Classify irregular series from two CSV files of your own.

    python -m examples.series seen.csv labels.csv --out runs/series

`seen.csv` has the columns id, time, variable, value, one row per observation, in any order;
`labels.csv` has id and label. Times are in minutes: change the clock for others. The model reads
observations at their real times; the control at 0, 1, 2, …
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import floater
from floater.errors import FloaterError
from floater.runs.folder import RunFolder
from floater.tasks.series.config import SeriesConfig, SeriesData
from floater.tasks.series.task import SeriesTask
from floater.tasks.timed.config import TimedPositions, TimedTraining
from floater.training.run import run
from floater.training.task import EvaluationRequest, PredictionRequest


def main() -> None:
    """Train on real times and on indices, compare both in pairs, and write predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("observations", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/series"))
    arguments = parser.parse_args()
    try:
        tasks = {
            times: SeriesTask(
                SeriesConfig(
                    data=SeriesData(observations=arguments.observations, labels=arguments.labels),
                    clock=floater.Clock(unit=60, name="minutes", scale=0.1),
                    positions=TimedPositions.model_validate({"times": times}),
                    training=TimedTraining(epochs=arguments.epochs),
                )
            )
            for times in ("real", "index")
        }
        for times, task in tasks.items():
            run(task, arguments.out / times, resume=True)
        real, control = RunFolder(arguments.out / "real"), arguments.out / "index"
        tasks["real"].evaluate(real, EvaluationRequest(against=control), Console())
        wanted = PredictionRequest(arguments.observations, arguments.out / "predictions.csv")
        tasks["real"].write_predictions(real, wanted, Console())
    except FloaterError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
