"""What an update costs: several models trained in turn in one process, so that all of them meet the
same noise.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ..runs.folder import RunFolder
from ..tasks.translation.batches import Collate, TokenBatches
from ..tasks.translation.config import TranslationConfig
from ..tasks.translation.preparing import prepare
from ..tasks.translation.task import make_model
from ..training import UpdateEvery, freeze_flow, parameter_groups

_WARM = 2  # updates that are not timed


@dataclass(frozen=True)
class Cost:
    """Median seconds of an update, and the median of its multiples of the first model's in the same
    round.
    """

    seconds: float
    ratio: float


def step_costs(
    configs: Mapping[str, TranslationConfig],
    folder: RunFolder,
    *,
    rounds: int,
    steps: int = 1,
    console: Console,
) -> dict[str, Cost]:
    """Time updates of models that differ in their positions or in how these are trained.

    Args:
        configs: by name; the first is what the others are compared with. All use its data.
        folder: a run whose vocabulary to use.
        rounds: how often each model gets a turn; the order is drawn anew in each round.
        steps: updates a turn; as many as a cycle, where something happens in every k-th update
            only.
        console: where to show a bar.
    """
    prepared = prepare(next(iter(configs.values())), folder)
    collate = Collate(prepared.vocabulary.pad, prepared.vocabulary.start)
    first = next(iter(configs.values()))
    drawn = TokenBatches(prepared.train.lengths(), first.training.batch_tokens, first.seed).all()[
        : rounds * steps + _WARM
    ]
    batches = [collate([prepared.train[i] for i in rows]) for rows in drawn]
    threads = torch.get_num_threads()
    torch.set_num_threads(first.training.threads or threads)
    try:
        learners = {
            name: _Learner(config, prepared.vocabulary, batches) for name, config in configs.items()
        }
        times: dict[str, list[float]] = {name: [] for name in configs}
        order = random.Random(0)
        for learner in learners.values():
            learner.learn(_WARM)
        for _ in track(
            range(rounds),
            "timing updates in turn",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ):
            for name in order.sample(list(learners), len(learners)):
                begun = time.perf_counter()
                learners[name].learn(steps)
                times[name].append((time.perf_counter() - begun) / steps)
    finally:
        torch.set_num_threads(threads)
    base = next(iter(times.values()))
    return {
        name: Cost(
            statistics.median(values),
            statistics.median(one / other for one, other in zip(values, base, strict=True)),
        )
        for name, values in times.items()
    }


class _Learner:
    """A model with its optimiser; every one sees the same batches in the same request."""

    def __init__(
        self, config: TranslationConfig, words: Any, batches: list[dict[str, Tensor]]
    ) -> None:
        torch.manual_seed(config.seed)
        training = config.training
        self._model = make_model(
            config.model_copy(update={"init_from": None, "init_scale": None}), words
        ).train()
        self._model.label_smoothing, self._model.jitter = (
            training.label_smoothing,
            config.positions.jitter,
        )
        if training.freeze_flow:
            freeze_flow(self._model)
        groups = parameter_groups(self._model, lr=training.lr, **training.groups())
        self._optimiser = torch.optim.AdamW(
            groups, lr=training.lr, betas=training.betas, eps=training.eps
        )
        self._rhythm = UpdateEvery(training.update_every) if training.update_every > 1 else None
        self._batches: Iterator[dict[str, Tensor]] = cycle(batches)
        self._step = 0

    def learn(self, steps: int) -> None:
        for batch in (next(self._batches) for _ in range(steps)):
            if self._rhythm is not None:
                state: Any = SimpleNamespace(global_step=self._step)
                self._rhythm.on_step_begin(None, state, None, model=self._model)  # type: ignore[arg-type]
            self._model(**batch, num_items_in_batch=batch["labels"].ne(-100).sum()).loss.backward()
            self._optimiser.step()
            self._optimiser.zero_grad()
            self._step += 1
