"""Encoders on real times and on indices, on the same body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..runs.encodings import Encodings
from ..runs.results import Figure, Series
from ..tasks.timed.attention import attention_by_distance
from ..tasks.timed.model import TimedModel
from ..tasks.timed.task import TimedTask
from .encoder_comparison import EncoderComparison
from .scheduler import Runs
from .variants import RANDOM_FLOW

POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"encoder": {"kind": "sinusoidal"}},
    "flow-input": {"encoder": RANDOM_FLOW},
    "flow-blocks": {"encoder": RANDOM_FLOW, "sites": "blocks"},
    "flow-qkv": {"encoder": RANDOM_FLOW, "sites": "qkv"},
    "rotary-flow": {"rotary": True, "encoder": RANDOM_FLOW, "sites": "qkv"},
    "flow-index": {"encoder": RANDOM_FLOW, "times": "index"},
    "sinusoidal-index": {"encoder": {"kind": "sinusoidal"}, "times": "index"},
    "fourier": {"encoder": {"kind": "fourier"}},
    "rotary": {"encoder": {"kind": "rotary"}, "sites": "qkv"},
    "learned-index": {
        "encoder": {"kind": "learned", "max_length": 512, "beyond": "clamp"},
        "times": "index",
    },
    "none": {"encoder": {"kind": "none"}},
}
"""`positions` of each variant; the first is the base of the paired tests."""
NAMES = {
    "sinusoidal": "sinusoidal, real times",
    "flow-input": "flow at the input, real times",
    "flow-blocks": "flow at all blocks, real times",
    "flow-qkv": "flow at q, k, v, real times",
    "rotary-flow": "rotary + flow at q, k, v, real times",
    "flow-index": "flow at the input, indices",
    "sinusoidal-index": "sinusoidal, indices",
    "fourier": "Fourier features, real times",
    "rotary": "rotary, real times",
    "learned-index": "learned table, indices",
    "none": "no positions",
}
_FLOWS: tuple[str, ...] = ("flow-input", "flow-blocks", "flow-qkv", "rotary-flow")
_BINS = 12  # of distances in time
_SEQUENCES = 64  # over which attention is averaged


class TimedComparison(EncoderComparison):
    """A table of encoders on a task with real-valued times."""

    positions = POSITIONS
    names = NAMES
    flows = _FLOWS
    flow = "flow on real times"

    def task_of(self, settings: Mapping[str, Any]) -> TimedTask[Any, Any]:
        task = super().task_of(settings)
        assert isinstance(task, TimedTask)
        return task

    def figures(self, settings: Mapping[str, Mapping[str, Any]], runs: Runs) -> list[Figure]:
        tasks = {key: self.task_of(own) for key, own in settings.items()}
        folders = {key: each[0] for key, each in runs.items() if each[0].model.is_dir()}
        models = {}
        for key, folder in folders.items():
            model, prepared = tasks[key].load(folder.model)
            assert isinstance(model, TimedModel)
            models[key] = (model, prepared)
        if not models:
            return []
        first = tasks[next(iter(models))]
        split = first.splits()["test"]
        spans = [model.config.prepared["span"] for model, _ in models.values()]
        edges = np.linspace(0, max(spans), _BINS + 1)
        attention = []
        for key, (model, prepared) in models.items():
            features = tasks[key].encode(split, prepared, training=False)
            collate = tasks[key].collate(prepared)
            chosen = range(min(len(features), _SEQUENCES))
            batches = (collate([features[number]]) for number in chosen)
            means = attention_by_distance(model, batches, edges)
            attention.append(Series(name=self.names[key], y=means))
        unit = _unit(first)
        middles: list[str | int | float] = [
            round(float(middle), 3) for middle in (edges[1:] + edges[:-1]) / 2
        ]
        figures = [
            Figure(
                title="Attention by distance in time",
                x_label=f"distance {unit}",
                y_label="attention, 1 = equal for all tokens",
                x=middles,
                series=attention,
            )
        ]
        return [*figures, *_trajectories(folders, models, unit, self.names)]


def _unit(task: TimedTask[Any, Any]) -> str:
    """What the axes of time count."""
    clock = task.config.clock
    if clock.log:
        return f"on the clock, {clock.scale:g}·log(1 + time/{clock.unit:g} {clock.name})".rstrip()
    return f"on the clock (1 = {clock.unit / clock.scale:g} {clock.name or 'of the raw times'})"


def _trajectories(
    folders: Mapping[str, Any],
    models: Mapping[str, tuple[TimedModel, Any]],
    unit: str,
    names: Mapping[str, str],
) -> list[Figure]:
    """How far an encoding moves from where it starts, against the real clock."""
    lines: list[Series] = []
    times: list[float] = []
    for key, folder in folders.items():
        stored = Encodings.read(folder.path)
        if stored is None or models[key][0].on_indices:
            continue
        thinned = stored.thinned(64)
        table = torch.from_numpy(thinned.tables[0])
        distance = (table - table[:1]).norm(dim=1) / table.norm(dim=1).mean().clamp(min=1e-9)
        lines.append(Series(name=names[key], y=[float(value) for value in distance]))
        times = [round(float(time), 4) for time in thinned.times]
    if not lines:
        return []
    return [
        Figure(
            title="Trajectories against the real clock, first site",
            x_label=f"time {unit}",
            y_label="|p(t) - p(0)| / mean |p|",
            x=list(times),
            series=lines,
        )
    ]
