"""The task `documents`: classify documents, whose sentences stand at times by their lengths."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import ArgumentError, RunError
from ...files import write_text
from ...printing import print_text
from ...runs.folder import RunFolder
from ...training.process import process_settings
from ...training.task import PredictionRequest
from ..timed.folds import divide, divide_rest
from ..timed.task import TimedTask
from ..understanding.measured import MeasuredData
from ..understanding.predicting import predict_all
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.resampling import accuracy, mean
from .config import DocumentsConfig
from .inputs import (
    DocumentInputs,
    Preparation,
    classes_of,
    collate,
    firsts_of,
    sentence_times,
)
from .model import DocumentModel
from .pretrained import Pretrained
from .synthetic import generate
from .text import Documents, DocumentSplit, read, whole
from .tokens import Words, train_vocabulary, words_of

MEASURES: dict[str, Measure] = {"accuracy": accuracy, "loss": mean(2, 1.0)}
"""Of rows (prediction, label, loss)."""


class DocumentsTask(TimedTask[DocumentSplit, DocumentInputs]):
    """Classify documents with a Transformer over sentence vectors."""

    config: DocumentsConfig
    config_class = DocumentsConfig
    model_class = DocumentModel
    less_is_better = frozenset({"loss"})

    def __init__(self, config: DocumentsConfig) -> None:
        super().__init__(config)
        self._known: dict[str, DocumentSplit] | None = None
        self._encoder: Pretrained | None = None

    # Data -----------------------------------------------------------------------------------------

    def splits(self) -> dict[str, DocumentSplit]:
        if self._known is None:
            data, documents = self.config.data, self._documents()
            if data.test is not None:
                rest = divide_rest(
                    np.zeros(len(documents), dtype=bool), documents.ids, documents.labels, data
                )
                parts = {name: rest[name] for name in ("train", "valid")}
            elif documents.folds:
                is_test = np.array(documents.folds) == data.fold
                parts = divide_rest(is_test, documents.ids, documents.labels, data)
            else:
                parts = divide(documents.ids, documents.labels, data)
            self._known = {
                name: DocumentSplit(f"{documents.name} ({name})", documents, numbers)
                for name, numbers in parts.items()
            }
            if data.test is not None:
                self._known["test"] = self.read(data.test)
        return self._known

    def _documents(self) -> Documents:
        data = self.config.data
        if data.synthetic is not None:
            return generate(data.synthetic)
        assert data.documents is not None
        return read(data.documents, data)

    def read(self, path: Path) -> DocumentSplit:
        return whole(read(path, self.config.data))

    @property
    def encoder(self) -> Pretrained:
        """The pretrained sentence encoder; loaded once."""
        if self._encoder is None:
            self._encoder = Pretrained(self.config.sentences)
        return self._encoder

    def keep_vectors(self) -> None:
        """Compute the vectors of a frozen encoder, unless `sentences.cache` has them already."""
        for documents in {id(s.documents): s.documents for s in self.splits().values()}.values():
            words = self.encoder.words(documents)
            self.encoder.vectors(documents, words, self.config.sentences.cache)

    def prepare(self, folder: RunFolder) -> MeasuredData:
        splits = self.splits()
        preparation = self._measured(splits["train"])
        return MeasuredData(
            preparation,
            splits,
            self.encode(splits["train"], preparation, training=True),
            self.encode(splits["valid"], preparation, training=False),
        )

    def _measured(self, train: DocumentSplit) -> Preparation:
        own = self.config.sentences
        flat = [sentence for sentences in train.sentences() for sentence in sentences]
        settings: dict[str, Any] = {"kind": own.kind, "max_words": own.max_words}
        if own.kind == "pretrained":
            encoder, text = self.encoder, ""
            settings |= {"kind": "frozen", "width": encoder.width, "sha256": encoder.sha256}
            tokenizer = encoder.tokenizer
            if own.trained:
                text = tokenizer.to_str()
                settings |= {"kind": "trained", "config": encoder.model.config.to_dict()}
        else:
            tokenizer = train_vocabulary(flat, own.vocabulary)
            text = tokenizer.to_str()
            settings |= {"vocabulary": tokenizer.get_vocab_size(), "layers": own.layers}
        if own.frozen:
            lengths, firsts = encoder.words(train.documents).lengths, _firsts_in_file(train)
        else:
            lengths = words_of(tokenizer, flat, own.max_words).lengths
            firsts = firsts_of(train.sentences())
        parts = [
            lengths[first : first + len(sentences)]
            for first, sentences in zip(firsts, train.sentences(), strict=True)
        ]
        mean_length = float(np.concatenate(parts).mean())
        last = max(float(sentence_times(part, self.config, mean_length)[-1]) for part in parts)
        return Preparation(classes_of(train), settings, text, mean_length, max(last, 1e-6))

    def encode(self, split: DocumentSplit, tokenizer: Any, *, training: bool) -> DocumentInputs:
        return self._inputs(split, tokenizer, labelled=True)

    def _inputs(
        self, split: DocumentSplit, preparation: Preparation, *, labelled: bool
    ) -> DocumentInputs:
        own = self.config.sentences
        if own.frozen:
            if preparation.sentences["sha256"] != self.encoder.sha256:
                raise RunError(
                    f"`sentences.name` must be the sentence encoder that the model was trained "
                    f"with, but the weights or the tokenizer of {own.name} are others; restore "
                    "them."
                )
            words = self.encoder.words(split.documents)  # of the whole file, for all its splits
            vectors = self.encoder.vectors(split.documents, words, own.cache)
            firsts = _firsts_in_file(split)
            return DocumentInputs(
                split, preparation, self.config, words, firsts, vectors, labelled=labelled
            )
        sentences = split.sentences()
        words = self._words(preparation, [text for each in sentences for text in each])
        firsts = firsts_of(sentences)
        return DocumentInputs(split, preparation, self.config, words, firsts, labelled=labelled)

    def _words(self, preparation: Preparation, sentences: Sequence[str]) -> Words:
        tokenizer: Tokenizer = Tokenizer.from_str(preparation.tokenizer)
        return words_of(tokenizer, sentences, preparation.sentences["max_words"])

    def collate(self, tokenizer: Any) -> Callable[[Sequence[Any]], Batch]:
        return collate

    def warnings(self, model: nn.Module, data: MeasuredData) -> Sequence[str]:
        """What was left out of the data."""
        documents: Documents = data.splits["train"].documents
        if not documents.truncated:
            return []
        limit = self.config.data.max_sentences
        return [
            f"{documents.truncated:,} of {len(documents):,} documents have more than {limit:,} "
            f"sentences (`max_sentences`); the first {limit:,} of each are used"
        ]

    # Model ----------------------------------------------------------------------------------------

    def build_model(self, data: MeasuredData) -> nn.Module:
        model = super().build_model(data)
        if self.config.sentences.trained:
            assert isinstance(model, DocumentModel)
            model.words.load_state_dict(self.encoder.model.state_dict())
        return model

    def to_json(self, prepared: Preparation) -> dict[str, Any]:
        return prepared.to_json()

    def from_json(self, saved: Mapping[str, Any]) -> Preparation:
        return Preparation(**saved)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(forward(model, batch), batch["labels"], reduction="sum")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"scores": forward(model, batch).log_softmax(-1)}

    # Measures -------------------------------------------------------------------------------------

    @property
    def measures(self) -> Mapping[str, Measure]:
        return MEASURES

    def judge(
        self, split: DocumentSplit, features: DocumentInputs, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        scores, labels = outputs["scores"], np.array(features.labels)
        chosen = scores.argmax(1)
        losses = -scores[np.arange(len(labels)), labels]
        classes = features.preparation.classes
        named = {
            name: {"predicted": classes[number], "probabilities": np.exp(row).tolist()}
            for name, number, row in zip(split.ids(), chosen, scores, strict=True)
        }
        return Predictions(named, np.column_stack((chosen, labels, losses)).astype(np.float64))

    def scores(self, table: np.ndarray) -> dict[str, float]:
        everything = np.ones((1, len(table)))
        return {name: float(measure(table, everything)[0]) for name, measure in MEASURES.items()}

    # Commands -------------------------------------------------------------------------------------

    @torch.no_grad()
    def write_predictions(
        self, folder: RunFolder, request: PredictionRequest, console: Console
    ) -> None:
        for option in ("labels", "asked"):
            if getattr(request, option) is not None:
                raise ArgumentError(f"`--{option}` does not apply to documents.")
        self.config.clock.check_unit(request.unit, str(request.data or "The data"))
        weights = self.weights_to_predict(folder, request)
        with process_settings():
            split = whole(read(request.data, self.config.data, labelled=False))
            model, preparation = self.load(weights)
            features = self._inputs(split, preparation, labelled=False)
            outputs = predict_all(self, model, features, preparation)
        chances = np.exp(outputs["scores"].astype(np.float64))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        name = self.config.data.fields.id or "line"
        writer.writerow([name, "predicted", *(f"p_{label}" for label in preparation.classes)])
        for own, row in zip(split.ids(), chances, strict=True):
            best = preparation.classes[row.argmax()]
            writer.writerow([own, best, *(f"{chance:.6g}" for chance in row)])
        write_text(request.out, text.getvalue())
        print_text(console, f"wrote {len(split):,} predictions to {request.out}")


def _firsts_in_file(split: DocumentSplit) -> NDArray[np.int64]:
    """The number of the first sentence of each document among all sentences of its file."""
    return firsts_of(split.documents.sentences)[split.members]
