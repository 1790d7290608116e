"""The RACE task: config, loss and scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase

from ...config import Config, Count
from ..understanding.config import FineTuning, FurtherSets, UnderstandingConfig
from ..understanding.problem import Batch, Measure, Predictions, forward, limit
from ..understanding.resampling import mean, ratio
from ..understanding.task import UnderstandingTask
from . import data, metrics
from .data import LETTERS, LEVELS, RaceSplit
from .features import MultipleChoices, features

Files = Annotated[tuple[Path, ...], Field(min_length=1)]


class RaceData(Config):
    """Where the articles are: JSON lines files, or the original folders."""

    train: Files
    valid: Files
    more: FurtherSets[Files] = Field(default_factory=dict)
    """Further test sets, by name, such as `test`."""
    max_train: Count | None = None
    """Train on this many questions only; every run uses the same ones."""
    max_valid: Count | None = None
    """Evaluate on this many questions only."""


class RaceTraining(FineTuning):
    """How to fine-tune: RoBERTa's values for RACE, with the encoder frozen as in the paper."""

    epochs: Count = 4
    freeze_flow: bool = True


class RaceConfig(UnderstandingConfig):
    """One run of RACE."""

    task: Literal["race"] = "race"
    data: RaceData
    training: RaceTraining = RaceTraining()


class RaceTask(UnderstandingTask[RaceSplit, MultipleChoices]):
    """Choose one of four options."""

    auto_class = AutoModelForMultipleChoice
    config: RaceConfig
    config_class = RaceConfig

    @property
    def measures(self) -> dict[str, Measure]:
        return {"accuracy": mean(0), "middle": ratio(1, 2, 100.0), "high": ratio(3, 4, 100.0)}

    def splits(self) -> dict[str, RaceSplit]:
        settings = self.config.data
        files = {"train": settings.train, "valid": settings.valid, **settings.more}
        splits = {name: data.read(*paths) for name, paths in files.items()}
        return limit(splits, settings.max_train, settings.max_valid)

    def read(self, path: Path) -> RaceSplit:
        return data.read(path)

    def encode(
        self, split: RaceSplit, tokenizer: PreTrainedTokenizerBase, *, training: bool
    ) -> MultipleChoices:
        return features(split.questions, tokenizer, self.config.max_length)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(
            forward(model, batch).logits.float(), batch["labels"], reduction="sum"
        )

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": forward(model, batch).logits}

    def judge(
        self, split: RaceSplit, features: MultipleChoices, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        chosen = metrics.choose(outputs["logits"])
        result = metrics.accuracy(split.questions, chosen)
        columns = [result.correct]
        for level in LEVELS:
            columns += [result.correct & (result.levels == level), result.levels == level]
        letters = {
            question.id: LETTERS[number]
            for question, number in zip(split.questions, chosen, strict=True)
        }
        return Predictions(letters, np.stack(columns, 1).astype(np.float64))

    def scores(self, table: np.ndarray) -> dict[str, float]:
        levels = np.where(table[:, 2] == 1, *LEVELS)
        summary = metrics.Accuracy(table[:, 0].astype(bool), levels).summary()
        return {name: float(value) for name, value in summary.items() if name in self.measures}
