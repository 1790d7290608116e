"""Cost of a training step on irregular series: a flow at the times of every series.

    python benchmarks/irregular.py [--pairs 40] [--threads 1] [--layers 2] [--width 64] [--rows 32]
        [--observations 70] [--out benchmarks/results/irregular.json]

Each round times, in one process and in random order, one training step (forward, backward, AdamW)
of the task `series` on the same batch of generated series, every one with random times of its own:
sinusoidal encodings, the same again, and a flow, each at the input, at all blocks, and at q, k and
v. The output is the median ratio to sinusoidal encodings at the same sites, minus 1, with a
bootstrap interval, and how often the flow was solved in an update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import floater
from floater.encoders import Flow
from floater.errors import FloaterError
from floater.runs.folder import RunFolder
from floater.tasks import task_from
from floater.tasks.series.task import SeriesTask
from turns import begin, measured, options, overhead_texts, save, seconds_text, show, take_turns

SIZES = {"pairs": 40, "threads": 1, "layers": 2, "width": 64, "rows": 32, "observations": 70}
SITES = ("input", "blocks", "qkv")
DURATION = 4.8  # of a series: as long as 48 tokens at Δ, as in configs/series/physionet2012.yaml
ENCODERS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"kind": "sinusoidal"},
    "sinusoidal-again": {"kind": "sinusoidal"},
    "flow": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.1},
}


class Step:
    """A model with its optimiser.

    Attributes:
        solves: how often its flow was solved; 0 for other encoders.
    """

    def __init__(self, task: SeriesTask, data: Any) -> None:
        torch.manual_seed(0)
        self._task, self._model = task, task.build_model(data).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=True)
        attached = floater.attachment(self._model)
        encoders = [] if attached is None else list(attached.encoders.values())
        self._flows = [encoder for encoder in encoders if isinstance(encoder, Flow)]

    @property
    def solves(self) -> int:
        return sum(flow.solves for flow in self._flows)

    def __call__(self, batch: dict[str, Any]) -> float:
        """Return the seconds of one training step."""
        begun = time.perf_counter()
        loss = self._task.loss(self._model, batch) / len(batch["labels"])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun


def task_of(arguments: Any, encoder: dict[str, Any], sites: str) -> SeriesTask:
    """The task with an encoder at some sites."""
    task = task_from(
        {
            "task": "series",
            "data": {
                "synthetic": {
                    "series": 10 * arguments.rows,
                    "observations": arguments.observations,
                    "duration": DURATION,
                }
            },
            "clock": {"origin": 0.0},
            "model": {
                "layers": arguments.layers,
                "dim": arguments.width,
                "feed_forward": 2 * arguments.width,
            },
            "positions": {"encoder": encoder, "sites": sites},
        }
    )
    assert isinstance(task, SeriesTask)
    return task


def main(given: Sequence[str] | None = None) -> int:
    parser = options("irregular", __doc__, SIZES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/irregular.json"))
    arguments = parser.parse_args(given)
    begin(arguments.threads, arguments.out)
    found: dict[str, dict[str, Any]] = {}
    for sites in SITES:
        try:
            tasks = {name: task_of(arguments, encoder, sites) for name, encoder in ENCODERS.items()}
        except FloaterError as error:
            parser.error(str(error))
        first = tasks["sinusoidal"]
        data = first.prepare(RunFolder(arguments.out.parent / "irregular"))
        collate = first.collate(data.tokenizer)

        def draw(data: Any = data, collate: Any = collate) -> Any:
            chosen = torch.randperm(len(data.train))[: arguments.rows].tolist()
            return collate([data.train[number] for number in chosen])

        steps = {name: Step(task, data) for name, task in tasks.items()}
        times = take_turns(arguments.pairs, steps, draw)
        for name in times:
            facts = {"solves": steps[name].solves / (arguments.pairs + 1)}
            found[f"{name}, {sites}"] = measured(times["sinusoidal"], times[name], **facts)
    save(arguments, "irregular", variants=found)
    show(
        f"Training step, {arguments.rows} series of {arguments.observations} observations",
        ("positions", "step", "more time", "95 % interval", "solves per update"),
        (
            (name, seconds_text(row["seconds"]), *overhead_texts(row), f"{row['solves']:g}")
            for name, row in found.items()
        ),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
