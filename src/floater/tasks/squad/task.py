"""The SQuAD task: config, loss and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from ...config import Config, Count, NotNegative, Positive
from ..padding import PadRight
from ..understanding.config import FineTuning, FurtherSets, UnderstandingConfig
from ..understanding.problem import Batch, Measure, Predictions, forward, limit
from ..understanding.resampling import mean
from ..understanding.task import UnderstandingTask
from . import data, metrics, spans
from .data import SquadSplit
from .features import Windows, features
from .threshold import tune


class SquadData(Config):
    """Where the questions are, and how they are cut into windows."""

    train: Path
    """A JSON file in the official schema, plain or .gz; it is of version 2.0 if its questions have
    `is_impossible`.
    """
    valid: Path
    more: FurtherSets[Path] = Field(default_factory=dict)
    """Further files to evaluate on, by name."""
    max_train: Count | None = None
    """Train on this many questions only; every run uses the same ones."""
    max_valid: Count | None = None
    """Evaluate on this many questions only."""
    stride: Annotated[int, Field(ge=0)] = 128
    """Context tokens that two neighbouring windows share."""
    max_question: Count = 64
    """Tokens per question; longer questions are truncated."""
    longest_answer: Count = 30
    """Tokens per predicted answer."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Version 2.0: a question is answered if the score of no answer exceeds that of the best span
    by at most this much. By default it is tuned on the test set, as for the official script's best
    F1.
    """


class SquadTraining(FineTuning):
    """How to fine-tune: RoBERTa's values for SQuAD."""

    epochs: Count = 2
    batch: Count = 48
    lr: Positive = 1.5e-5
    weight_decay: NotNegative = 0.01


class SquadConfig(UnderstandingConfig):
    """One run of SQuAD."""

    task: Literal["squad"] = "squad"
    data: SquadData
    training: SquadTraining = SquadTraining()


class SquadTask(UnderstandingTask[SquadSplit, Windows]):
    """Find the span of the answer, or that there is none."""

    auto_class = AutoModelForQuestionAnswering
    config: SquadConfig
    config_class = SquadConfig

    @property
    def measures(self) -> dict[str, Measure]:
        return {"f1": mean(1), "exact": mean(0)}

    def splits(self) -> dict[str, SquadSplit]:
        settings = self.config.data
        files = {"train": settings.train, "valid": settings.valid, **settings.more}
        splits = {name: data.read(path) for name, path in files.items()}
        return limit(splits, settings.max_train, settings.max_valid)

    def read(self, path: Path) -> SquadSplit:
        return data.read(path)

    def encode(
        self, split: SquadSplit, tokenizer: PreTrainedTokenizerBase, *, training: bool
    ) -> Windows:
        settings = self.config.data
        return features(
            split.questions,
            tokenizer,
            self.config.max_length,
            settings.stride,
            training=training,
            max_question=settings.max_question,
        )

    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        pad = PadRight(tokenizer.pad_token_id)

        def collate(rows: Sequence[Any]) -> Batch:
            batch = pad(rows)
            if "start_positions" in batch:
                batch["labels"] = torch.stack(
                    (batch.pop("start_positions"), batch.pop("end_positions")), 1
                )
            return batch

        return collate

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs, labels = forward(model, batch), batch["labels"]
        ends = (outputs.start_logits, outputs.end_logits)
        return torch.stack(
            [F.cross_entropy(ends[i].float(), labels[:, i], reduction="sum") for i in (0, 1)]
        ).sum()

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = forward(model, batch)
        return {"start": outputs.start_logits, "end": outputs.end_logits}

    def judge(
        self, split: SquadSplit, features: Windows, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        longest, threshold = self.config.data.longest_answer, self.config.data.threshold
        answers = spans.predict(features, outputs["start"], outputs["end"], longest=longest)
        if split.version == "1.1":
            threshold = np.inf
        elif threshold is None:
            threshold = tune(answers, "f1").value
        texts = spans.texts(answers, threshold)
        scores = metrics.score(split, texts)
        return Predictions(
            dict(texts),
            np.stack([scores.exact, scores.f1, scores.answerable], 1).astype(np.float64),
        )

    def scores(self, table: np.ndarray) -> dict[str, float]:
        answerable = table[:, 2].astype(bool)
        summary = metrics.QuestionScores(table[:, 0], table[:, 1], answerable).summary()
        return {name: float(value) for name, value in summary.items() if not name.endswith("total")}
