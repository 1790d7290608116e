"""GLUE's sentences and labels, from the original TSV files or the hub, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError, brief
from ...files import digest
from ..tsv import from_hub, read_tsv
from ..understanding.problem import sample
from .kinds import GLUE_TASKS, GlueKind, Name

HUB = "nyu-mll/glue"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_MOST = 5  # STS-B's scores


@dataclass(frozen=True)
class Sentences:
    """Rows of one or two sentences; labels are class numbers, or numbers to predict, or not
    known.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray | None
    name: str

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder remembers of its data."""
        labels = [""] * len(self) if self.labels is None else map(str, self.labels.tolist())
        rows = ["\t".join((*texts, label)) for texts, label in zip(self.texts, labels, strict=True)]
        return {"from": self.name, "rows": len(self), "sha256": digest(rows)}

    def some(self, count: int | None) -> Sentences:
        """So many rows, drawn once and for all, in their order."""
        chosen = sample(len(self), count)
        if chosen is None:
            return self
        labels = None if self.labels is None else self.labels[chosen]
        return Sentences(
            [self.texts[number] for number in chosen], labels, f"{self.name} ({count} rows drawn)"
        )


def read(path: Path, name: Name) -> Sentences:
    """A TSV file in the layout of GLUE; without a column of labels (a test file) they are not
    known.
    """
    kind = GLUE_TASKS[name]
    table = read_tsv(path, kind.header, skip_broken=kind.broken_rows)
    texts = list(zip(*(map(str.strip, table.column(wanted)) for wanted in kind.texts), strict=True))
    origin = f"{path} ({table.broken} broken rows left out)" if table.broken else str(path)
    if kind.label not in table.columns:
        return Sentences(texts, None, origin)
    labels = [
        _label(kind, cell, table.place(row)) for row, cell in enumerate(table.column(kind.label))
    ]
    return Sentences(texts, np.array(labels), origin)


def _label(kind: GlueKind, text: str, place: str) -> float | int:
    if kind.labels is None:
        found = float(text) if _NUMBER.fullmatch(text.strip()) else _MOST + 1
        if not 0 <= found <= _MOST:
            raise DataError(
                f"{place}: `{kind.label}` must be a number from 0 to {_MOST}, but is {brief(text)}."
            )
        return found
    if text not in kind.labels:
        raise DataError(
            f"{place}: `{kind.label}` must be one of {', '.join(kind.labels)}, but is "
            f"{brief(text)}."
        )
    return kind.labels.index(text)


def read_hub(name: Name, part: str) -> Sentences:
    """A part of the hub's copy, such as train or validation."""
    kind = GLUE_TASKS[name]
    rows = from_hub(HUB, name, part)
    texts = list(zip(*(map(str.strip, rows[wanted]) for wanted in kind.hub_texts), strict=True))
    labels = np.array(rows["label"])
    return Sentences(texts, None if (labels == -1).all() else labels, f"{HUB} {name} {part}")
