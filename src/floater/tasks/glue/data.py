"""Reading and checking GLUE's sentences and labels, from the original TSV files or the hub."""

from __future__ import annotations

import math
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
_LARGEST = 5  # of STS-B's scores


@dataclass(frozen=True)
class Sentences:
    """Rows of one or two sentences.

    Attributes:
        texts: the sentences of each row.
        labels: class numbers, or numbers to predict; None if they are unknown.
        name: where the rows came from.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray | None
    name: str

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about the data."""
        labels = [""] * len(self) if self.labels is None else map(str, self.labels.tolist())
        rows = ["\t".join((*texts, label)) for texts, label in zip(self.texts, labels, strict=True)]
        return {"from": self.name, "rows": len(self), "sha256": digest(rows)}

    def sampled(self, size: int | None) -> Sentences:
        """A fixed sample of `size` rows in their order; itself if all are taken."""
        chosen = sample(len(self), size)
        if chosen is None:
            return self
        labels = None if self.labels is None else self.labels[chosen]
        return Sentences(
            [self.texts[i] for i in chosen], labels, f"{self.name} ({size} rows drawn)"
        )


def read(path: Path, name: Name) -> Sentences:
    """Read a TSV file in GLUE's layout; a file without a column of labels gives None for them."""
    kind = GLUE_TASKS[name]
    table = read_tsv(path, kind.header, skip_broken=kind.broken_rows)
    texts = list(zip(*(map(str.strip, table.column(column)) for column in kind.texts), strict=True))
    origin = f"{path} ({table.broken} broken rows left out)" if table.broken else str(path)
    if kind.label not in table.columns:
        return Sentences(texts, None, origin)
    labels = [
        _label(kind, cell, table.location(row)) for row, cell in enumerate(table.column(kind.label))
    ]
    return Sentences(texts, np.array(labels), origin)


def _label(kind: GlueKind, text: str, location: str) -> float | int:
    if kind.labels is None:
        number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
        if not 0 <= number <= _LARGEST:
            raise DataError(
                f"{location}: `{kind.label}` must be a number from 0 to {_LARGEST}, but is "
                f"{brief(text)}."
            )
        return number
    if text not in kind.labels:
        raise DataError(
            f"{location}: `{kind.label}` must be one of {', '.join(kind.labels)}, but is "
            f"{brief(text)}."
        )
    return kind.labels.index(text)


def read_hub(name: Name, split: str) -> Sentences:
    """Load a split from the hub, such as train or validation."""
    kind = GLUE_TASKS[name]
    rows = from_hub(HUB, name, split)
    texts = list(zip(*(map(str.strip, rows[column]) for column in kind.hub_texts), strict=True))
    labels = np.array(rows["label"])
    return Sentences(texts, None if (labels == -1).all() else labels, f"{HUB} {name} {split}")
