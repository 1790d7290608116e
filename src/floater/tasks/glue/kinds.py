"""GLUE's tasks as data: their columns, labels and measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte"]


@dataclass(frozen=True)
class GlueKind:
    """One task.

    Attributes:
        texts: columns of the one or two sentences in the original TSV files.
        label: column of the label.
        labels: its values, in the order of the hub's numbers; None where it is a number to predict.
        measures: the main one first, as RoBERTa's paper reports it.
        hub_texts: columns of the sentences on the hub.
        header: names of the columns, where the files have none.
        broken_rows: the original files have rows with missing columns, which everybody leaves out.
    """

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    measures: tuple[str, ...]
    hub_texts: tuple[str, ...]
    header: tuple[str, ...] | None = None
    broken_rows: bool = False


_TWO = ("sentence1", "sentence2")
_FOLLOWS = ("entailment", "not_entailment")
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
    "mrpc": GlueKind(("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1"), _TWO),
    "qqp": GlueKind(
        ("question1", "question2"),
        "is_duplicate",
        ("0", "1"),
        ("accuracy", "f1"),
        ("question1", "question2"),
        broken_rows=True,
    ),
    "stsb": GlueKind(_TWO, "score", None, ("pearson", "spearman"), _TWO),
    "mnli": GlueKind(
        _TWO,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        ("premise", "hypothesis"),
    ),
    "qnli": GlueKind(
        ("question", "sentence"), "label", _FOLLOWS, ("accuracy",), ("question", "sentence")
    ),
    "rte": GlueKind(_TWO, "label", _FOLLOWS, ("accuracy",), _TWO),
}
