"""Documents as inputs of the model: classes, words or vectors, times, batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError
from ...times import sentences as tokens_before
from .config import DocumentsConfig
from .text import DocumentSplit
from .tokens import Words, padded


@dataclass(frozen=True)
class Preparation:
    """What was measured on the training set, saved with the model.

    Attributes:
        classes: names of the classes.
        sentences: how words become sentence vectors, with all sizes.
        tokenizer: as JSON, for models that read words.
        mean_length: tokens of the mean sentence.
        span: the largest time of the clock.
    """

    classes: list[str]
    sentences: dict[str, Any]
    tokenizer: str
    mean_length: float
    span: float

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def classes_of(split: DocumentSplit) -> list[str]:
    """The classes of all documents of a file, in order."""
    classes = sorted(set(split.documents.labels))
    if len(classes) < 2:
        raise DataError(
            f"{split.documents.name} must have documents of at least two classes, but all are "
            f"{classes[0]}."
        )
    return classes


def sentence_times(
    lengths: NDArray[np.int64], config: DocumentsConfig, mean_length: float
) -> NDArray[np.float64]:
    """The times of a document's sentences on the clock.

    Args:
        lengths: tokens of each sentence.
        config: its clock and spacing.
        mean_length: tokens of the mean sentence of the training set.
    """
    if config.positions.spacing == "equidistant":
        raw = torch.arange(len(lengths), dtype=torch.float64) * mean_length
    else:
        raw = tokens_before(torch.from_numpy(lengths), delta=1.0)
    times: NDArray[np.float64] = config.clock.times(raw, 0.0).numpy()
    return times


class DocumentInputs:
    """The documents of a split as inputs.

    Args:
        split: the documents.
        preparation: what was measured on the training set.
        config: settings of the run.
        words: of all sentences of the split, or of its file where `vectors` is given.
        firsts: the number of the first sentence of each document in `words`.
        vectors: of the same sentences, from a frozen encoder.
        labelled: whether labels are known.
    """

    def __init__(
        self,
        split: DocumentSplit,
        preparation: Preparation,
        config: DocumentsConfig,
        words: Words,
        firsts: NDArray[np.int64],
        vectors: NDArray[np.float32] | None = None,
        *,
        labelled: bool = True,
    ) -> None:
        self.preparation, self._config = preparation, config
        self._words, self._vectors, self._firsts = words, vectors, firsts
        self._counts = np.array([len(own) for own in split.sentences()], dtype=np.int64)
        self.labels = _labels(split, preparation.classes) if labelled else None

    def __len__(self) -> int:
        return len(self._counts)

    def lengths(self) -> NDArray[np.int64]:
        """Sentences of each document."""
        return self._counts

    def __getitem__(self, number: int) -> dict[str, Any]:
        first = int(self._firsts[number])
        rows = range(first, first + int(self._counts[number]))
        lengths = self._words.lengths[rows.start : rows.stop]
        item: dict[str, Any] = {
            "times": sentence_times(lengths, self._config, self.preparation.mean_length)
        }
        if self._vectors is not None:
            item["vectors"] = self._vectors[rows.start : rows.stop]
        else:
            item["words"] = [self._words.of(row) for row in rows]
        if self.labels is not None:
            item["label"] = self.labels[number]
        return item


def firsts_of(sentences: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """The number of the first sentence of each document, if all follow one another."""
    counts = [len(own) for own in sentences]
    return np.concatenate(([0], np.cumsum(counts)))[:-1].astype(np.int64)


def _labels(split: DocumentSplit, classes: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(classes)}
    documents, labels = split.documents, []
    for member in split.members:
        label = documents.labels[member]
        if label not in numbers:
            raise DataError(
                f"{documents.places[member]}: the label must be one of {', '.join(classes)}, but "
                f"is {label!r}."
            )
        labels.append(numbers[label])
    return labels


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Inputs → a batch: times, mask, words or vectors, labels."""
    counts = [len(item["times"]) for item in items]
    shape = (len(items), max(counts))
    times = torch.zeros(shape, dtype=torch.float64)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, item in enumerate(items):
        times[row, : counts[row]] = torch.from_numpy(item["times"])
        mask[row, : counts[row]] = 1
    batch = {"times": times, "attention_mask": mask}
    if "vectors" in items[0]:
        vectors = torch.zeros(*shape, items[0]["vectors"].shape[1])
        for row, item in enumerate(items):
            vectors[row, : counts[row]] = torch.from_numpy(item["vectors"])
        batch["vectors"] = vectors
    else:
        ids, seen = padded([words for item in items for words in item["words"]])
        for name, values in (("words", ids), ("word_mask", seen)):
            tensor = torch.zeros(*shape, values.shape[1], dtype=torch.long)
            tensor[mask.bool()] = torch.from_numpy(values)  # row by row
            batch[name] = tensor
    if "label" in items[0]:
        batch["labels"] = torch.tensor([item["label"] for item in items])
    return batch
