"""The GLUE task: config, inputs, loss and scores."""

from __future__ import annotations

from collections.abc import Mapping
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
from ..understanding.config import FurtherSets, UnderstandingConfig
from ..understanding.problem import Batch, Measure, Predictions, forward, limit
from ..understanding.task import UnderstandingTask
from . import data
from .data import Sentences
from .kinds import GLUE_TASKS, GlueKind, Name
from .metrics import RESAMPLED, score


class GlueData(Config):
    """Which GLUE task, and where its data is."""

    name: Name
    train: Path | None = None
    """A TSV file in the original layout, plain or .gz."""
    valid: Path | None = None
    more: FurtherSets[Path] = Field(default_factory=dict)
    """Further files to evaluate on, by name, such as `mismatched`."""
    hub: bool = False
    """Load the training and validation splits (for MNLI matched and mismatched) from the hub."""
    max_train: Count | None = None
    """Train on this many rows only; every run uses the same ones."""
    max_valid: Count | None = None
    """Evaluate on this many rows only."""

    @model_validator(mode="after")
    def _has_one_source(self) -> GlueData:
        if self.hub == (self.train is not None) or (self.train is None) != (self.valid is None):
            raise ValueError("give either `train` and `valid` (files) or `hub: true`")
        return self


class GlueConfig(UnderstandingConfig):
    """One run of a GLUE task."""

    task: Literal["glue"] = "glue"
    data: GlueData


class GlueInputs(Dataset[dict[str, Any]]):
    """Encoded sentences, for training with their labels."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._rows[number]

    def lengths(self) -> np.ndarray:
        """Tokens of each input."""
        return np.array([len(row["input_ids"]) for row in self._rows])


class GlueTask(UnderstandingTask[Sentences, GlueInputs]):
    """Classify sentences or pairs of sentences, or predict a number for them."""

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
        settings = self.config.data
        if settings.hub:
            suffix = "_matched" if settings.name == "mnli" else ""
            splits = {
                "train": data.read_hub(settings.name, "train"),
                "valid": data.read_hub(settings.name, f"validation{suffix}"),
            }
            if settings.name == "mnli":
                splits["mismatched"] = data.read_hub(settings.name, "validation_mismatched")
        else:
            files = {"train": settings.train, "valid": settings.valid, **settings.more}
            splits = {
                name: data.read(path, settings.name)
                for name, path in files.items()
                if path is not None
            }
        for split in splits.values():
            if split.labels is None:
                raise DataError(
                    f"{split.name} must have labels ({self._kind.label}), but has none."
                )
        return limit(splits, settings.max_train, settings.max_valid)

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
    ) -> GlueInputs:
        sides = [list(side) for side in zip(*split.texts, strict=True)]
        least = tokenizer.num_special_tokens_to_add(pair=len(sides) > 1) + len(sides)
        if self.config.max_length < least:
            raise DataError(
                f"`max_length` must be at least {least}, for one token of each sentence and the "
                f"special tokens, but is {self.config.max_length}."
            )
        encoded = tokenizer(*sides, truncation=True, max_length=self.config.max_length)
        rows = [
            dict(zip(encoded, values, strict=True))
            for values in zip(*encoded.values(), strict=True)
        ]
        if training and split.labels is not None:
            for row, label in zip(rows, split.labels.tolist(), strict=True):
                row["labels"] = label
        return GlueInputs(rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"]
        logits = forward(model, batch).logits.float()
        if self._kind.labels is None:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")
        return F.cross_entropy(logits, labels, reduction="sum")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": forward(model, batch).logits}

    def judge(
        self, split: Sentences, features: GlueInputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        logits, labels = outputs["logits"], self._kind.labels
        if not np.isfinite(logits).all():
            raise RunError(
                f"The logits for {split.name} must be finite, but are not; did the training "
                "diverge? Lower `lr`."
            )
        if labels is None:
            predicted = logits[:, 0].astype(np.float64)
            values: list[Any] = predicted.tolist()
        else:
            predicted = logits.argmax(1)
            values = [labels[number] for number in predicted]
        rows = [
            {"prediction": value, "logits": row}
            for value, row in zip(values, logits.tolist(), strict=True)
        ]
        table = (
            np.empty((0, 2))
            if split.labels is None
            else np.stack([predicted, split.labels], 1).astype(np.float64)
        )
        return Predictions(rows, table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        return {name: score(name, table[:, 0], table[:, 1]) for name in self.measures}

    def signature(self, measure: str, split: object) -> str:
        return f"{measure}|glue {self.config.data.name}|scikit-learn:{sklearn.__version__}"
