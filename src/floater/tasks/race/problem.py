"""RACE as a task: its config, loss and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase

from ...config import Config, Count
from ..padding import PadRight
from ..understanding.config import More, TrainingConfig, UnderstandingConfig
from ..understanding.problem import Batch, Judged, Measure, Problem, capped, outputs
from ..understanding.resampling import mean, ratio
from . import data, metrics
from .data import LETTERS, LEVELS, Race
from .features import Examples, features

Files = Annotated[tuple[Path, ...], Field(min_length=1)]


class DataConfig(Config):
    """Where the articles lie: JSON lines files, or the original folders."""

    train: Files
    valid: Files
    more: More[Files] = Field(default_factory=dict)
    """Further sets to evaluate on, by name, such as `test`."""
    max_train: Count | None = None
    """Train on so many questions only; they are drawn once, the same for every run."""
    max_valid: Count | None = None
    """Evaluate on so many questions only."""


class RaceTraining(TrainingConfig):
    """How to fine-tune; RoBERTa's values for RACE, with the encoder frozen as in the paper."""

    epochs: Count = 4
    freeze_flow: bool = True


class RaceConfig(UnderstandingConfig):
    """One run of RACE."""

    task: Literal["race"] = "race"
    data: DataConfig
    training: RaceTraining = RaceTraining()


class RaceProblem(Problem[Race, Examples]):
    """Choose one of four options."""

    auto_class = AutoModelForMultipleChoice
    config: RaceConfig

    @property
    def measures(self) -> dict[str, Measure]:
        return {"accuracy": mean(0), "middle": ratio(1, 2, 100.0), "high": ratio(3, 4, 100.0)}

    def parts(self) -> dict[str, Race]:
        where = self.config.data
        found = {
            name: data.read(*paths)
            for name, paths in {"train": where.train, "valid": where.valid, **where.more}.items()
        }
        return capped(found, where.max_train, where.max_valid)

    def read(self, path: Path) -> Race:
        return data.read(path)

    def encode(self, part: Race, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> Examples:
        return features(part.questions, tokenizer, self.config.max_length)

    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        return PadRight(tokenizer.pad_token_id)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(
            outputs(model, batch).logits.float(), batch["labels"], reduction="sum"
        )

    def answer(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": outputs(model, batch).logits}

    def judge(self, part: Race, features: Examples, answers: Mapping[str, np.ndarray]) -> Judged:
        chosen = metrics.choose(answers["logits"])
        found = metrics.accuracy(part.questions, chosen)
        columns = [found.correct]
        for level in LEVELS:
            columns += [found.correct & (found.levels == level), found.levels == level]
        said = {
            question.id: LETTERS[number]
            for question, number in zip(part.questions, chosen, strict=True)
        }
        return Judged(said, np.stack(columns, 1).astype(np.float64))

    def scores(self, table: np.ndarray) -> dict[str, float]:
        levels = np.where(table[:, 2] == 1, *LEVELS)
        found = metrics.Accuracy(table[:, 0].astype(bool), levels).summary()
        return {name: float(value) for name, value in found.items() if name in self.measures}
