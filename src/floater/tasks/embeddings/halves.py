"""Documents, and their halves, or they as a whole, as inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import DataError, brief
from ...files import digest, read_lines
from ..language_model.text import Text, special_tokens, tokens_of_lines
from ..schema import checked, field, read_json_lines
from ..understanding.problem import sample
from .config import TestSet

Halves = dict[str, list[list[int]] | int]


@dataclass(frozen=True)
class DocumentTexts:
    """Documents as texts.

    Attributes:
        texts: one for each document.
        name: where they came from, for messages.
        labels: the class of each document; None if halves search each other.
        folds: the part of a cross-validation to which each belongs; None for random parts.
        shortest: documents of fewer tokens are left out; None for the limit of training.
        read: tokens that are read of a half or of a document with a class; None for those of all
            test sets.
    """

    texts: list[str]
    name: str
    labels: list[str] | None = None
    folds: list[str] | None = None
    shortest: int | None = None
    read: int | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about it."""
        lines = [*self.texts, *(self.labels or ()), *(self.folds or ())]
        found: dict[str, str | int] = {
            "from": self.name,
            "documents": len(self),
            "sha256": digest(lines),
        }
        return found if self.read is None else {**found, "read": self.read}


def read(paths: Sequence[Path], key: str) -> DocumentTexts:
    """Read documents from JSON lines, or from text files with one document per line.

    Args:
        paths: the files, plain or .gz.
        key: name of the field that holds the text.
    """
    texts = [text for path in paths for text in _texts(path, key)]
    return DocumentTexts(texts, " ".join(map(str, paths)))


def read_set(settings: TestSet) -> DocumentTexts:
    """Read a test set, whose settings have every default written out."""
    assert settings.text is not None
    documents = read(settings.files, settings.text)
    labels, folds = (
        None if key is None else [name for path in settings.files for name in _names(path, key)]
        for key in (settings.label, settings.fold)
    )
    for key, values in ((settings.label, labels), (settings.fold, folds)):
        if values is not None and len(set(values)) < 2:
            raise DataError(
                f"{documents.name} must have at least two values of `{key}`, but has "
                f"{len(set(values))}."
            )
    return replace(
        documents,
        labels=labels,
        folds=folds,
        shortest=settings.min_tokens,
        read=settings.valid_length,
    )


def _names(path: Path, key: str) -> list[str]:
    """A field of each line of a JSON lines file, as text: the name of a class or part."""
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        raise DataError(f"{path} must be JSON lines to have `{key}`, but is text.")
    names = []
    for location, entry in read_json_lines(path):
        value = field(entry, key, object, location)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise DataError(
                f"{location}: `{key}` must be a name or a whole number, but is {brief(value)}."
            )
        names.append(json.dumps(value))  # 1 and "1" are different names
    return names


def _texts(path: Path, key: str) -> list[str]:
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        return [line for line in read_lines(path) if line.strip()]
    return [_text(entry, key, location) for location, entry in read_json_lines(path)]


def _text(entry: Any, key: str, location: str) -> str:
    found = field(entry, key, object, location)
    if not isinstance(found, str | list):
        raise DataError(
            f"{location}: `{key}` must be text or a list of texts, but is {brief(found)}."
        )
    parts = [found] if isinstance(found, str) else found
    text = " ".join(
        checked(part, str, f"entry {number} of `{key}`", location)
        for number, part in enumerate(parts, 1)
    )
    return " ".join(text.split())


class HalfInputs(Dataset[Halves]):
    """The two halves of every document, or all of it, as one window of tokens each or several: from
    their beginnings, or, in training, from random places that depend on seed, epoch and document
    only.

    Rows of windows that a half does not fill are empty: their attention mask is zero.

    Args:
        documents: tokens of each document, without special tokens.
        tokenizer: the model's.
        length: tokens of a window, with special tokens.
        windows: number of windows of each half.
        seed: of random places; None to begin at the beginning.
        most: tokens of a half that are read, with special tokens of one window; None for all.
        numbers: of the documents in their split; None for all.
        whole: documents are not divided.
    """

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        windows: int,
        seed: int | None,
        most: int | None = None,
        *,
        numbers: np.ndarray | None = None,
        whole: bool = False,
    ) -> None:
        self._documents, self._windows, self._whole = documents, windows, whole
        self.numbers = np.arange(len(documents)) if numbers is None else numbers
        self._seed, self._epoch = seed, 0
        self._before, self._after = special_tokens(tokenizer)
        special = len(self._before) + len(self._after)
        self._room = length - special
        self._most = None if most is None else most - special

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that determines the windows."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._documents)

    def lengths(self) -> np.ndarray:
        """Tokens of each document's longer input [documents]."""
        sizes = np.array([max(map(len, self._parts(document))) for document in self._documents])
        most = self._room if self._most is None else min(self._room, self._most)
        lengths: np.ndarray = np.minimum(sizes, most) + len(self._before) + len(self._after)
        return lengths

    def __getitem__(self, number: int) -> Halves:
        halves = self._parts(self._documents[number])
        if self._seed is not None:
            random = np.random.default_rng([self._seed, self._epoch, number])
            firsts = [random.integers(max(len(half) - self._room, 0) + 1) for half in halves]
            halves = [half[first:] for half, first in zip(halves, firsts, strict=True)]
        halves = [half[: self._most] for half in halves]
        parts = [
            half[number * self._room : (number + 1) * self._room]
            for half in halves
            for number in range(self._windows)
        ]
        rows = [[*self._before, *part.tolist(), *self._after] for part in parts]
        masks = [[int(len(part) > 0)] * len(row) for part, row in zip(parts, rows, strict=True)]
        return {"input_ids": rows, "attention_mask": masks, "labels": 0}

    def _parts(self, document: np.ndarray) -> list[np.ndarray]:
        middle = len(document) // 2
        return [document] if self._whole else [document[:middle], document[middle:]]


def half_inputs(
    split: DocumentTexts,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    *,
    windows: int,
    shortest: int,
    most: int | None,
    seed: int | None,
    read_tokens: int | None = None,
) -> HalfInputs:
    """Encode the halves of documents, or whole documents that have classes.

    Args:
        split: the documents.
        tokenizer: the model's.
        length: tokens of a window, with special tokens.
        windows: number of windows of each half.
        shortest: documents of fewer tokens are left out.
        most: number of documents to use, always the same ones; None for all.
        seed: of random windows; None to begin at the beginning.
        read_tokens: tokens of a half that are read in all; None for all of its windows.
    """
    rows = list(tokens_of_lines(Text(split.texts, split.name), tokenizer))
    numbers = np.array([at for at, row in enumerate(rows) if len(row) >= shortest], np.int64)
    chosen = sample(len(numbers), most)
    if chosen is not None:
        numbers = numbers[chosen]
    if len(numbers) < 2:
        raise DataError(
            f"{split.name} must hold at least two documents of {shortest} tokens, but "
            f"{len(numbers)} {'is' if len(numbers) == 1 else 'are'} used."
        )
    long = [rows[at] for at in numbers]
    whole = split.labels is not None
    return HalfInputs(
        long, tokenizer, length, windows, seed, read_tokens, numbers=numbers, whole=whole
    )
