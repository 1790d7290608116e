"""Predict the next event of each sequence of a file of your own.

    python -m examples.events seen.jsonl --out runs/events

`seen.jsonl` has one sequence per line, {"id": …, "times": […], "types": […]}; or `seen.csv` has the
columns id, time, type, one row per event. Times are in minutes: change the clock for others. The
model reads events at their real times; the control at 0, 1, 2, …
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import floater
from floater.errors import FloaterError
from floater.runs.folder import RunFolder
from floater.tasks.events.config import EventsConfig, EventsData
from floater.tasks.events.task import EventsTask
from floater.tasks.timed.config import TimedPositions, TimedTraining
from floater.training.run import run
from floater.training.task import EvaluationRequest, PredictionRequest


def main() -> None:
    """Train on real times and on indices, compare both in pairs, and write the next events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sequences", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/events"))
    arguments = parser.parse_args()
    try:
        tasks = {
            times: EventsTask(
                EventsConfig(
                    data=EventsData(sequences=arguments.sequences),
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
        wanted = PredictionRequest(arguments.sequences, arguments.out / "next.csv")
        tasks["real"].write_predictions(real, wanted, Console())
    except FloaterError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
