"""The columns, labels and measures of each GLUE task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte"]


@dataclass(frozen=True)
class GlueKind:
    """A GLUE task.

    Attributes:
        texts: columns of the one or two sentences in the original TSV files.
        label: column of the label.
        labels: its values, in the order of the hub's class numbers; None for a regression task.
        measures: as in RoBERTa's paper, the main one first.
        hub_texts: columns of the sentences on the hub.
        header: names of the columns, if the files have no header.
        broken_rows: whether the original files have rows with missing cells, which are skipped.
    """

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    measures: tuple[str, ...]
    hub_texts: tuple[str, ...]
    header: tuple[str, ...] | None = None
    broken_rows: bool = False


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS: dict[Name, GlueKind] = {
    "cola": GlueKind(
        ("sentence",),
        "label",
        ("0", "1"),
        ("matthews",),
        ("sentence",),
        header=("source", "label", "author_mark", "sentence"),
    ),
    "sst2": GlueKind(("sentence",), "label", ("0", "1"), ("accuracy",), ("sentence",)),
    "mrpc": GlueKind(("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1"), _PAIR),
    "qqp": GlueKind(
        ("question1", "question2"),
        "is_duplicate",
        ("0", "1"),
        ("accuracy", "f1"),
        ("question1", "question2"),
        broken_rows=True,
    ),
    "stsb": GlueKind(_PAIR, "score", None, ("pearson", "spearman"), _PAIR),
    "mnli": GlueKind(
        _PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        ("premise", "hypothesis"),
    ),
    "qnli": GlueKind(
        ("question", "sentence"), "label", _ENTAILMENT, ("accuracy",), ("question", "sentence")
    ),
    "rte": GlueKind(_PAIR, "label", _ENTAILMENT, ("accuracy",), _PAIR),
}
