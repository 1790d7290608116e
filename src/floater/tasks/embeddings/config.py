"""Settings of the embeddings task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Config, Count, Positive
from ...encoders import TableFlowConfig
from ...encoders.tables import TABLE_SCALINGS
from ..understanding.config import FineTuning, FurtherSets, UnderstandingConfig

_SPECIAL = 4
"""More special tokens than a window has."""
Files = Annotated[tuple[Path, ...], Field(min_length=1)]


class EmbeddingData(Config):
    """Where the documents are: JSON lines, or text files with one document per line."""

    train: Files
    valid: Files
    more: FurtherSets[Files] = Field(default_factory=dict)
    """Further test sets, by name."""
    text: str = "text"
    """Name of the field of JSON lines that holds the text, or a list of texts."""
    min_tokens: Annotated[int, Field(ge=4)] = 64
    """Shorter documents are left out of training."""
    min_valid_tokens: Annotated[int, Field(ge=4)] = 64
    """Shorter documents are left out of test sets."""
    max_train: Count | None = None
    """Train on this many documents only; every run uses the same ones."""
    max_valid: Count | None = None
    """Evaluate on this many documents of each set only."""


class EmbeddingTraining(FineTuning):
    """How to train: the position encoder alone by default, or all weights (`part: all`)."""

    part: Literal["all", "flow", "nothing"] = "flow"
    epochs: Count = 1
    batch: Annotated[int, Field(ge=2, le=2**16)] = 16
    lr: Positive = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class EmbeddingsConfig(UnderstandingConfig):
    """One run on halves of documents.

    In training, a window of each half of a document must be closer to the other half's than those
    of all other documents of the batch. In evaluation, the second half of every document searches
    its first half among those of all documents.
    """

    task: Literal["embeddings"] = "embeddings"
    data: EmbeddingData
    max_length: Annotated[int, Field(ge=8, le=2**20)] = 256
    """Tokens of a window in training."""
    valid_length: Annotated[int, Field(ge=8, le=2**20)] = 512
    """Tokens that are read of a half in evaluation."""
    reading: Literal["whole", "truncate", "windows"] = "whole"
    """How long inputs are read in evaluation: as a whole; cut off after `window` tokens; or in
    windows of so many tokens, whose embeddings are averaged.
    """
    window: Annotated[int, Field(ge=8, le=2**20)] = 512
    """Tokens per window, or where inputs are cut off."""
    pooling: Literal["mean", "first"] = "mean"
    """An embedding is the mean of the last hidden states, or that of the first token."""
    temperature: Positive = 0.05
    """Cosine similarities are divided by it in the loss."""
    training: EmbeddingTraining = EmbeddingTraining()

    @model_validator(mode="after")
    def _window_fits(self) -> EmbeddingsConfig:
        if self.reading == "whole":
            return self
        if self.window > self.valid_length:
            raise ValueError(
                f"`window` must be at most `valid_length`, {self.valid_length}, but is "
                f"{self.window}"
            )
        return self

    def evaluated(self) -> tuple[int, int]:
        """Tokens of a window in evaluation, and number of windows of each half."""
        if self.reading == "whole":
            return self.valid_length, 1
        window = min(self.window, self.valid_length)
        if self.reading == "truncate":
            return window, 1
        # windows have special tokens of their own, which take room
        return window, math.ceil(self.valid_length / max(window - _SPECIAL, 1))

    def variants(self) -> dict[str, UnderstandingConfig]:
        """Truncation, windows, fixed scalings of the position table, and this config."""
        base = super().variants()["base"]
        training = base.training.model_copy(update={"part": "nothing"})
        plain = base.model_copy(update={"training": training})
        variants: dict[str, UnderstandingConfig] = {
            "truncate": plain.model_copy(update={"reading": "truncate"}),
            "windows": plain.model_copy(update={"reading": "windows"}),
        }
        encoder = self.positions.encoder
        if isinstance(encoder, TableFlowConfig):
            for scaling in sorted(TABLE_SCALINGS):
                fixed = {"scaling": scaling, "learned": False, "exact": False, "approximate": False}
                positions = self.positions.model_copy(
                    update={"encoder": encoder.model_copy(update=fixed), "jitter": None}
                )
                variants[scaling] = self.model_copy(
                    update={"positions": positions, "training": training}
                )
        return {**variants, "floater": self}
