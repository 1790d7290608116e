"""The embeddings task: halves of documents that must find each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedTokenizerBase

from ...attachments.layouts import LAYOUTS
from ...errors import ConfigError, RunError
from ...runs.folder import RunFolder
from ..understanding.models import check_lengths, settings_of
from ..understanding.problem import Batch, Measure, Predictions
from ..understanding.resampling import mean
from ..understanding.task import UnderstandingData, UnderstandingTask
from .classes import check_classes, class_ranks
from .config import EmbeddingsConfig
from .halves import DocumentTexts, HalfInputs, half_inputs, read, read_set

_TOKENS = 8192
"""Tokens of one forward pass in evaluation; longer batches are divided."""


class EmbeddingsTask(UnderstandingTask[DocumentTexts, HalfInputs]):
    """Find the first half of a document by its second half, or tell the class of a document."""

    auto_class = AutoModel
    same_start = False  # truncation and windows differ from whole inputs
    config: EmbeddingsConfig
    config_class = EmbeddingsConfig

    @property
    def measures(self) -> dict[str, Measure]:
        return {"accuracy": mean(0), "mrr": mean(1)}

    def check(self, path: Path) -> None:
        """Refuse inputs that the model has no positions for, and models that give no embedding."""
        settings = settings_of(self.config.model.name)
        if getattr(settings, "is_encoder_decoder", False):
            raise ConfigError(
                f"`name` of `model` must be an encoder, but {self.config.model.name} is an "
                "encoder-decoder."
            )
        layout = LAYOUTS.get(str(settings.model_type))
        if self.config.pooling == "first" and layout is not None and "decoder" in layout.stacks:
            raise ConfigError(
                f"`pooling` must be mean for {self.config.model.name}, whose first token sees no "
                "other one, but is first."
            )
        lengths = {"`valid_length` or `window`": self.config.evaluated()[0]}
        if self.trains:
            lengths["`max_length`"] = self.config.max_length
        check_lengths(self.config, lengths)

    def prepare(self, folder: RunFolder) -> UnderstandingData:
        """Read everything, and refuse further test sets that cannot be measured later."""
        data = super().prepare(folder)
        for name, split in data.splits.items():
            if name in ("train", "valid"):
                continue
            features = self.encode(split, data.tokenizer, training=False)
            if split.labels is not None:
                check_classes(split, features.numbers)
        return data

    def splits(self) -> dict[str, DocumentTexts]:
        settings = self.config.data
        tests = {name: read_set(own) for name, own in settings.test_sets().items()}
        return {"train": read(settings.train, settings.text), **tests}

    def read(self, path: Path) -> DocumentTexts:
        return read((path,), self.config.data.text)

    def encode(
        self, split: DocumentTexts, tokenizer: PreTrainedTokenizerBase, *, training: bool
    ) -> HalfInputs:
        config, settings = self.config, self.config.data
        length, windows = (config.max_length, 1) if training else config.evaluated()
        return half_inputs(
            split,
            tokenizer,
            length,
            windows=windows,
            shortest=settings.min_tokens
            if training
            else split.shortest or settings.min_valid_tokens,
            most=settings.max_train if training else settings.max_valid,
            seed=config.seed if training else None,
            read_tokens=None if training else self._read_tokens(split),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        first, second = self._embed(model, batch, windows=1).unbind(1)
        similar = second @ first.T / self.config.temperature
        right = torch.arange(len(similar), device=similar.device)
        both = [F.cross_entropy(each, right, reduction="sum") for each in (similar, similar.T)]
        return (both[0] + both[1]) / 2

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        parts = self._embed(model, batch, windows=self.config.evaluated()[1], most=_TOKENS)
        names = ("whole",) if parts.shape[1] == 1 else ("first", "second")
        return dict(zip(names, parts.unbind(1), strict=True))

    def _embed(
        self, model: nn.Module, batch: Batch, *, windows: int, most: int | None = None
    ) -> Tensor:
        """The embeddings [documents, parts, dim] of the halves of documents, or of whole ones: of
        several windows, the mean by tokens.

        Args:
            model: the model.
            batch: inputs [documents, parts·windows, tokens].
            windows: number of windows of each part.
            most: tokens of one forward pass; None for all at once.
        """
        ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        counts = mask.sum(1)
        full = counts.nonzero().squeeze(1)
        rows = len(full) if most is None else max(most // ids.shape[1], 1)
        vectors = torch.cat([self._pooled(model, ids[at], mask[at]) for at in full.split(rows)])
        weighted = vectors.new_zeros(len(ids), vectors.shape[1])
        weighted[full] = counts[full, None].to(vectors.dtype) * vectors
        parts = weighted.unflatten(0, (len(batch["labels"]), -1, windows)).sum(2)
        return F.normalize(parts, dim=-1)

    def _pooled(self, model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Embeddings [rows, dim] of windows, not normalised."""
        longest = int(mask.sum(1).max())
        ids, mask = ids[:, :longest], mask[:, :longest]
        states: Tensor = model(input_ids=ids, attention_mask=mask)[0].float()
        if self.config.pooling == "first":
            return states[:, 0]
        kept = mask.unsqueeze(-1).to(states.dtype)
        return (states * kept).sum(1) / kept.sum(1)

    def judge(
        self, split: DocumentTexts, features: HalfInputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        vectors = {name: rows.astype(np.float64) for name, rows in outputs.items()}
        if not all(np.isfinite(rows).all() for rows in vectors.values()):
            raise RunError(
                f"The embeddings of {split.name} must be finite, but are not; did the training "
                "diverge? Lower `lr`."
            )
        if split.labels is not None:
            ranks = class_ranks(vectors["whole"], split, features.numbers)
        else:
            similar = vectors["second"] @ vectors["first"].T
            ranks = (similar >= np.diag(similar)[:, None]).sum(1)
        table = np.stack([ranks == 1, 1 / ranks], 1).astype(np.float64)
        return Predictions([int(rank) for rank in ranks], table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        accuracy, mrr = 100 * table.mean(0)
        return {"accuracy": float(accuracy), "mrr": float(mrr)}

    def signature(self, measure: str, split: DocumentTexts) -> str:
        return f"{measure}|{self._read_tokens(split)} tokens of each half or document"

    def _read_tokens(self, split: DocumentTexts) -> int:
        """Tokens that are read of a half, or of a document with a class, in evaluation."""
        return split.read or self.config.valid_length
