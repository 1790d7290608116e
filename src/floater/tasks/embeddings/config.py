"""Settings of the embeddings task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ...config import Config, Count, Positive
from ...encoders import TableFlowConfig
from ...encoders.tables import TABLE_SCALINGS
from ..understanding.config import FineTuning, FurtherSets, UnderstandingConfig

_SPECIAL = 4
"""More special tokens than a window has."""
Files = Annotated[tuple[Path, ...], Field(min_length=1)]


class TestSet(Config):
    """A test set with settings of its own. With a label, a linear classifier is trained on the
    embeddings of whole documents, and tested on the others; otherwise halves search each other.
    """

    __test__ = False  # its name looks like that of a test

    files: Files
    text: str | None = None
    """Name of the field that holds the text. Default: that of all sets."""
    label: str | None = None
    """Name of the field that holds the class of a document."""
    fold: str | None = None
    """Name of the field that says to which part of a cross-validation a document belongs. Default:
    ten random parts, always the same ones.
    """
    min_tokens: Annotated[int, Field(ge=4)] | None = None
    """Shorter documents are left out. Default: `min_valid_tokens`; none with a label."""
    valid_length: Annotated[int, Field(ge=8, le=2**20)] | None = None
    """Tokens that are read of a half, or of a document with a label. Default: that of all sets."""

    @model_validator(mode="after")
    def _folds_have_labels(self) -> TestSet:
        if self.fold is not None and self.label is None:
            raise ValueError("`fold` needs a `label`")
        return self


def _from_files(given: object) -> object:
    """A list of files is a test set without settings of its own."""
    return {"files": given} if isinstance(given, list | tuple) else given


class EmbeddingData(Config):
    """Where the documents are: JSON lines, or text files with one document per line."""

    train: Files
    valid: Files
    more: FurtherSets[Annotated[TestSet, BeforeValidator(_from_files)]] = Field(
        default_factory=dict
    )
    """Further test sets, by name: files, or files with settings of their own."""
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

    def test_sets(self) -> dict[str, TestSet]:
        """All test sets by name, with every default written out."""
        sets = {"valid": TestSet(files=self.valid), **self.more}
        return {name: self._complete(own) for name, own in sets.items()}

    def _complete(self, own: TestSet) -> TestSet:
        least = self.min_valid_tokens if own.label is None else 1
        defaults = {"text": own.text or self.text, "min_tokens": own.min_tokens or least}
        return own.model_copy(update=defaults)


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
    its first half among those of all documents; or whole documents are classified.
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
    compare_windows: tuple[Annotated[int, Field(ge=8, le=2**20)], ...] = ()
    """More sizes of windows for `floater compare`: each is compared as `window` is."""
    pooling: Literal["mean", "first"] = "mean"
    """An embedding is the mean of the last hidden states, or that of the first token."""
    temperature: Positive = 0.05
    """Cosine similarities are divided by it in the loss."""
    training: EmbeddingTraining = EmbeddingTraining()

    @model_validator(mode="after")
    def _window_fits(self) -> EmbeddingsConfig:
        windows = [("compare_windows", window) for window in self.compare_windows]
        if self.reading != "whole":
            windows.append(("window", self.window))
        for name, window in windows:
            if window > self.valid_length:
                raise ValueError(
                    f"`{name}` must be at most `valid_length`, {self.valid_length}, but is {window}"
                )
        for name, own in self.data.more.items():
            if own.valid_length is not None and own.valid_length > self.valid_length:
                raise ValueError(
                    f"`valid_length` of `{name}` must be at most that of all sets, "
                    f"{self.valid_length}, but is {own.valid_length}"
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
        """Truncation, windows, fixed scalings of the position table, and this config. If all
        weights are trained, also the base that is trained in the same way and reads in windows.
        """
        base = super().variants()["base"]
        training = base.training.model_copy(update={"part": "nothing"})
        plain = base.model_copy(update={"training": training})
        readings = {
            reading + (f"-{window}" if window != self.window else ""): {
                "reading": reading,
                "window": window,
            }
            for window in (self.window, *self.compare_windows)
            for reading in ("truncate", "windows")
        }
        variants: dict[str, UnderstandingConfig] = {
            name: plain.model_copy(update=reading) for name, reading in readings.items()
        }
        if self.training.part == "all":  # what the weights alone gain
            variants["trained-windows"] = base.model_copy(update={"reading": "windows"})
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
