"""A GLUE task: its config, inputs, loss and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sklearn
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ...config import Config, Count
from ...errors import DataError, RunError
from ..padding import PadRight
from ..understanding.config import FurtherSets, UnderstandingConfig
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.task import UnderstandingTask
from . import data
from .data import Sentences
from .kinds import GLUE_TASKS, GlueKind, Name
from .metrics import RESAMPLED, score


class GlueData(Config):
    """Which of GLUE's tasks, and where it lies."""

    name: Name
    train: Path | None = None
    """A TSV file of the original layout, plain or .gz."""
    valid: Path | None = None
    more: FurtherSets[Path] = Field(default_factory=dict)
    """Further files to evaluate on, by name, such as `mismatched`."""
    hub: bool = False
    """Take train and validation (for MNLI matched, and mismatched too) from the hub instead."""
    max_train: Count | None = None
    """Train on so many rows only; they are drawn once, the same for every run."""
    max_valid: Count | None = None
    """Evaluate on so many rows only."""

    @model_validator(mode="after")
    def _somewhere(self) -> GlueData:
        if self.hub == (self.train is not None) or (self.train is None) != (self.valid is None):
            raise ValueError("give either `train` and `valid` (files) or `hub: true`")
        return self


class GlueConfig(UnderstandingConfig):
    """One run of a GLUE task."""

    task: Literal["glue"] = "glue"
    data: GlueData


class Inputs(Dataset[dict[str, Any]]):
    """Encoded sentences, with their labels if they are wanted."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._rows[number]

    def lengths(self) -> np.ndarray:
        """Tokens of each input."""
        return np.array([len(row["input_ids"]) for row in self._rows])


class GlueTask(UnderstandingTask[Sentences, Inputs]):
    """One of GLUE's tasks."""

    auto_class = AutoModelForSequenceClassification
    config: GlueConfig
    config_class = GlueConfig

    @property
    def _kind(self) -> GlueKind:
        return GLUE_TASKS[self.config.data.name]

    @property
    def measures(self) -> dict[str, Measure]:
        return {name: RESAMPLED[name] for name in self._kind.measures}

    def splits(self) -> dict[str, Sentences]:
        where = self.config.data
        if where.hub:
            further = "_matched" if where.name == "mnli" else ""
            found = {
                "train": data.read_hub(where.name, "train"),
                "valid": data.read_hub(where.name, f"validation{further}"),
            }
            if where.name == "mnli":
                found["mismatched"] = data.read_hub(where.name, "validation_mismatched")
        else:
            files = {"train": where.train, "valid": where.valid, **where.more}
            found = {
                name: data.read(path, where.name)
                for name, path in files.items()
                if path is not None
            }
        for name, split in found.items():
            if split.labels is None:
                raise DataError(
                    f"{split.name} must have labels ({self._kind.label}), but has none."
                )
            found[name] = split.some(where.max_train if name == "train" else where.max_valid)
        return found

    def read(self, path: Path) -> Sentences:
        return data.read(path, self.config.data.name)

    def head(self) -> dict[str, Any]:
        labels = self._kind.labels
        if labels is None:
            return {"num_labels": 1}
        return {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: number for number, label in enumerate(labels)},
        }

    def encode(
        self, split: Sentences, tokenizer: PreTrainedTokenizerBase, *, training: bool
    ) -> Inputs:
        sides = [list(side) for side in zip(*split.texts, strict=True)]
        least = tokenizer.num_special_tokens_to_add(pair=len(sides) > 1) + len(sides)
        if self.config.max_length < least:
            raise DataError(
                f"`max_length` must be at least {least}, room for a token of each sentence and the "
                f"special ones, but is {self.config.max_length}."
            )
        found = tokenizer(*sides, truncation=True, max_length=self.config.max_length)
        rows = [
            dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)
        ]
        if training and split.labels is not None:
            for row, label in zip(rows, split.labels.tolist(), strict=True):
                row["labels"] = label
        return Inputs(rows)

    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        return PadRight(tokenizer.pad_token_id)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"]
        logits = forward(model, batch).logits.float()
        if self._kind.labels is None:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")
        return F.cross_entropy(logits, labels, reduction="sum")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": forward(model, batch).logits}

    def judge(
        self, split: Sentences, features: Inputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        logits, labels = outputs["logits"], self._kind.labels
        if not np.isfinite(logits).all():
            raise RunError(
                f"The logits for {split.name} must be finite, but are not; did the training "
                "diverge? Lower `lr`."
            )
        if labels is None:
            made = logits[:, 0].astype(np.float64)
            said: list[Any] = made.tolist()
        else:
            made = logits.argmax(1)
            said = [labels[number] for number in made]
        rows = [
            {"prediction": one, "logits": row}
            for one, row in zip(said, logits.tolist(), strict=True)
        ]
        table = (
            np.empty((0, 2))
            if split.labels is None
            else np.stack([made, split.labels], 1).astype(np.float64)
        )
        return Predictions(rows, table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        return {name: score(name, table[:, 0], table[:, 1]) for name in self.measures}

    def signature(self, measure: str) -> str:
        return f"{measure}|glue {self.config.data.name}|scikit-learn:{sklearn.__version__}"
