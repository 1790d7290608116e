"""The time of an update: several models take turns in one process, so that noise affects all."""

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
from ..tasks.translation.vocabulary import Vocabulary
from ..training import UpdateEvery, freeze_flow, parameter_groups

_WARM_UP = 2  # updates that are not timed


@dataclass(frozen=True)
class Cost:
    """The time of an update.

    Attributes:
        seconds: median over rounds.
        ratio: median of the time relative to the first model in the same round.
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
        configs: by name; the others are compared with the first one, and all use its data.
        folder: run whose vocabulary is used.
        rounds: number of turns of each model; the order is random in each round.
        steps: updates per turn; a multiple of k if something happens in every kth update only.
        console: where to show a progress bar.
    """
    first = next(iter(configs.values()))
    prepared = prepare(first, folder)
    collate = Collate(prepared.vocabulary.pad, prepared.vocabulary.start)
    plan = TokenBatches(prepared.train.lengths(), first.training.batch_tokens, first.seed).all()
    batches = [
        collate([prepared.train[i] for i in rows]) for rows in plan[: rounds * steps + _WARM_UP]
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(first.training.threads or threads)
    try:
        learners = {
            name: _Learner(config, prepared.vocabulary, batches) for name, config in configs.items()
        }
        times: dict[str, list[float]] = {name: [] for name in configs}
        order = random.Random(0)
        for learner in learners.values():
            learner.learn(_WARM_UP)
        for _ in track(
            range(rounds),
            "timing updates",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ):
            for name in order.sample(list(learners), len(learners)):
                started = time.perf_counter()
                learners[name].learn(steps)
                times[name].append((time.perf_counter() - started) / steps)
    finally:
        torch.set_num_threads(threads)
    base = next(iter(times.values()))
    return {
        name: Cost(
            statistics.median(values),
            statistics.median(time / first for time, first in zip(values, base, strict=True)),
        )
        for name, values in times.items()
    }


class _Learner:
    """A model with its optimiser; all of them see the same batches in the same order."""

    def __init__(
        self, config: TranslationConfig, vocabulary: Vocabulary, batches: list[dict[str, Tensor]]
    ) -> None:
        torch.manual_seed(config.seed)
        training = config.training
        self._model = make_model(
            config.model_copy(update={"init_from": None, "init_scale": None}), vocabulary
        ).train()
        self._model.label_smoothing = training.label_smoothing
        if training.freeze_flow:
            freeze_flow(self._model)
        groups = parameter_groups(self._model, lr=training.lr, **training.groups())
        self._optimiser = torch.optim.AdamW(
            groups, lr=training.lr, betas=training.betas, eps=training.eps
        )
        self._update_every = (
            UpdateEvery(training.update_every) if training.update_every > 1 else None
        )
        self._batches: Iterator[dict[str, Tensor]] = cycle(batches)
        self._step = 0

    def learn(self, steps: int) -> None:
        for batch in (next(self._batches) for _ in range(steps)):
            if self._update_every is not None:
                state: Any = SimpleNamespace(global_step=self._step)
                unused: Any = None
                self._update_every.on_step_begin(unused, state, unused, model=self._model)
            self._model(**batch, num_items_in_batch=batch["labels"].ne(-100).sum()).loss.backward()
            self._optimiser.step()
            self._optimiser.zero_grad()
            self._step += 1
