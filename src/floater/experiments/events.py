"""Event sequences: every encoder on the same body, on real times and on indices."""

from __future__ import annotations

from typing import Any

from ..recipes import read
from ..runs.results import Table
from ..tasks.events.hawkes import true_log_likelihood
from ..tasks.events.task import EventsTask
from .encoder_comparison import AnyTask
from .scheduler import Runs
from .timed import TimedComparison
from .variants import Scale, config_file


class EventsTable(TimedComparison):
    """Taxi rides (the split of EasyTPP); at the scale smoke, a generated Hawkes process."""

    name = "events"
    title = "Event sequences by position encoding"

    @property
    def anchors(self) -> str:
        return (
            "Log-likelihood in nats per event after the first, in the raw unit of time; MAE of the "
            "median gap, RMSE of the expected gap. Published log-likelihoods on Taxi: IFTPP .453, "
            "AttNHP .493, NHP .514, S2P2 .522."
        )

    def base_settings(self, scale: Scale) -> dict[str, Any]:
        if scale == "small":
            return read(config_file("events/taxi.yaml"))
        return hawkes()

    def score_table(self, task: AnyTask, runs: Runs) -> Table:
        """With generated sequences, the last row is the best that any model can reach."""
        table = super().score_table(task, runs)
        assert isinstance(task, EventsTask)
        process = task.config.data.synthetic
        if process is None:
            return table
        reached = f"{true_log_likelihood(process, task.splits()['test'].members):.4f}"
        empty = [None] * (len(table.columns) - 2)
        return table.model_copy(
            update={"rows": [*table.rows, ["the true process", reached, *empty]]}
        )


def hawkes(updates: int = 300) -> dict[str, Any]:
    """Settings of a run on a generated Hawkes process, whose likelihood is known."""
    return {
        "task": "events",
        "data": {"synthetic": {}},
        "clock": {"scale": 0.1},
        "model": {"preset": "tiny", "dropout": 0.0},
        "head": {"components": 8},
        "training": {
            "updates": updates,
            "lr": 0.003,
            "take": "last",
            "evaluate_every": updates,
            "save_every": updates,
            "threads": 1,
        },
    }
