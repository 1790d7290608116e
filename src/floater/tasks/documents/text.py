"""Documents of a JSON lines file as lists of sentences, checked line by line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError, brief
from ..schema import checked, field, read_json_lines
from .config import DocumentData


@dataclass(frozen=True)
class Documents:
    """All documents of a file.

    Attributes:
        name: of the file, for messages.
        ids: one for each document.
        sentences: of each document, none of them blank; at most `max_sentences`.
        labels: one for each document; empty where they were not asked for.
        folds: the number of each document's fold; empty where the file has none.
        places: file and line of each document, for messages.
        truncated: number of documents that had more sentences.
        sha256: of ids, labels and sentences.
    """

    name: str
    ids: list[str]
    sentences: list[list[str]]
    labels: list[str]
    folds: list[int]
    places: list[str]
    truncated: int
    sha256: str

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class DocumentSplit:
    """Some documents of a file.

    Attributes:
        name: where they came from, for messages.
        documents: all documents of the file.
        members: the numbers of those that belong to it.
    """

    name: str
    documents: Documents
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.members)

    def ids(self) -> list[str]:
        """Of its documents."""
        return [self.documents.ids[number] for number in self.members]

    def sentences(self) -> list[list[str]]:
        """Of its documents."""
        return [self.documents.sentences[number] for number in self.members]

    def fingerprint(self) -> dict[str, Any]:
        """What a run folder records about it."""
        parts = [self.documents.sha256, *self.ids()]
        return {
            "from": self.name,
            "documents": len(self),
            "sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(),
        }


def whole(documents: Documents) -> DocumentSplit:
    """All documents of a file as one split."""
    return DocumentSplit(documents.name, documents, np.arange(len(documents)))


def read(path: Path, config: DocumentData, *, labelled: bool = True) -> Documents:
    """Read a JSON lines file.

    Args:
        path: the file, plain or .gz.
        config: names of the fields, and what is a sentence.
        labelled: whether labels are needed; the folds of a file are labels too.
    """
    fields, cut = config.fields, splitter(config.split)
    ids: dict[str, None] = {}
    sentences, labels, folds, places = [], [], [], []
    for location, entry in read_json_lines(path):
        name = _id(entry, fields.id, location)
        if name in ids:
            raise DataError(
                f"{location}: `{fields.id}` must be unique, but an earlier document also has "
                f"{brief(name)}."
            )
        ids[name] = None
        sentences.append(_sentences(entry, fields.text, cut, config.split, location))
        places.append(location)
        if labelled:
            labels.append(_label(entry, fields.label, location))
            if fields.fold is not None and path == config.documents:
                assert config.folds is not None
                folds.append(_fold(entry, fields.fold, config.folds, location))
    if not ids:
        raise DataError(f"{path} must hold at least one document, but holds none.")
    return collected(str(path), list(ids), sentences, labels, folds, places, config.max_sentences)


def collected(
    name: str,
    ids: list[str],
    sentences: Sequence[list[str]],
    labels: list[str],
    folds: list[int],
    places: list[str],
    limit: int,
) -> Documents:
    """Documents of at most `limit` sentences each; see `Documents` for the other arguments."""
    sha256 = hashlib.sha256()
    for number, own in enumerate(sentences):
        label = labels[number] if labels else None
        sha256.update(json.dumps([ids[number], label, own[:limit]]).encode())
    return Documents(
        name,
        ids,
        [own[:limit] for own in sentences],
        labels,
        folds,
        places,
        sum(len(own) > limit for own in sentences),
        sha256.hexdigest(),
    )


def splitter(kind: str) -> Callable[[str], Iterator[str]]:
    """A function that cuts a text into sentences."""
    if kind == "lines":
        return lambda text: iter(text.splitlines())
    if kind == "given":
        return lambda text: iter((text,))
    try:
        from syntok import segmenter  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ConfigError(
            "`data.split: library` needs the package syntok, which is not installed; run pip "
            "install 'floater-transformers[documents]', or give sentences as lists or lines."
        ) from None

    def cut(text: str) -> Iterator[str]:
        for paragraph in segmenter.process(text):
            for sentence in paragraph:
                yield "".join(token.spacing + token.value for token in sentence)

    return cut


def _id(entry: Any, key: str | None, location: str) -> str:
    if key is None:
        return location.rpartition(", ")[2]
    return _name(entry, key, location)


def _label(entry: Any, key: str, location: str) -> str:
    label = _name(entry, key, location)
    if not label:
        raise DataError(
            f"{location}: `{key}` must not be empty, but is; fill it in, or remove the line."
        )
    return label


def _name(entry: Any, key: str, location: str) -> str:
    """Text, or a number as text."""
    value = field(entry, key, object, location)
    if isinstance(value, bool | int):
        return json.dumps(value)
    return checked(value, str, f"`{key}`", location).strip()


def _fold(entry: Any, key: str, folds: int, location: str) -> int:
    fold = field(entry, key, int, location)
    if not 0 <= fold < folds:
        raise DataError(
            f"{location}: `{key}` must be from 0 to {folds - 1}, as `folds` is {folds}, but is "
            f"{fold}."
        )
    return fold


def _sentences(
    entry: Any, key: str, cut: Callable[[str], Iterator[str]], kind: str, location: str
) -> list[str]:
    """The sentences of a document; blank ones are left out."""
    found = field(entry, key, object, location)
    if isinstance(found, str) and kind == "given":
        raise DataError(
            f"{location}: `{key}` must be a list of sentences, but is text; for text, set "
            "`data.split` to lines or library."
        )
    if not isinstance(found, str | list):
        raise DataError(
            f"{location}: `{key}` must be text or a list of texts, but is {brief(found)}."
        )
    texts = [found] if isinstance(found, str) else found
    sentences = [
        " ".join(sentence.split())
        for number, text in enumerate(texts, 1)
        for sentence in cut(checked(text, str, f"entry {number} of `{key}`", location))
    ]
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise DataError(
            f"{location}: `{key}` must hold at least one sentence, but is empty; remove the line."
        )
    return sentences
