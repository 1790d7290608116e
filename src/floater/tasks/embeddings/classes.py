"""A linear classifier on embeddings: what they tell about the class of a document."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, LeaveOneGroupOut

from ...errors import DataError
from .halves import DocumentTexts

_PARTS = 10
"""Parts of a cross-validation whose parts are random."""
_STRENGTH = 10.0
"""Inverse of the weight of the penalty (C), for embeddings of length 1."""


def class_ranks(vectors: np.ndarray, split: DocumentTexts, numbers: np.ndarray) -> np.ndarray:
    """The rank of each document's own class among those that a classifier holds likely; 1 is right.

    The classifier is logistic regression. It is trained on all parts of a cross-validation but the
    one of the document.

    Args:
        vectors: embeddings [documents, dim] of length 1.
        split: labels and parts of all documents.
        numbers: which of them the embeddings belong to.
    """
    assert split.labels is not None
    classes, labels = np.unique(np.array(split.labels)[numbers], return_inverse=True)
    ranks = np.full(len(labels), len(classes))
    for others, own in _parts(split, numbers):
        known = np.unique(labels[others])
        model = LogisticRegression(C=_STRENGTH, max_iter=1000).fit(vectors[others], labels[others])
        likely = model.predict_proba(vectors[own])
        columns = np.searchsorted(known, labels[own]).clip(max=len(known) - 1)
        right = np.take_along_axis(likely, columns[:, None], 1)
        # a class that the classifier has not seen stays last
        seen = known[columns] == labels[own]
        ranks[own] = np.where(seen, (likely >= right).sum(1), len(classes))
    return ranks


def check_classes(split: DocumentTexts, numbers: np.ndarray) -> None:
    """Refuse documents on which no classifier can be trained and tested.

    Args:
        split: labels and parts of all documents.
        numbers: which of them are used.
    """
    assert split.labels is not None
    labels = np.array(split.labels)[numbers]
    for others, own in _parts(split, numbers):
        if len(known := np.unique(labels[others])) < 2:
            raise DataError(
                f"{split.name} must have documents of two classes outside of each part of the "
                f"cross-validation, but without {_of(split, numbers[own])} all {len(others)} that "
                f"are used are of the class {known[0] if len(known) else 'of none'}; give more "
                "documents, or another `fold`."
            )


def _of(split: DocumentTexts, numbers: np.ndarray) -> str:
    """A part of a cross-validation, as a message names it."""
    if split.folds is None:
        return f"{len(numbers)} of them"
    return f"the part {split.folds[numbers[0]]}"


def _parts(split: DocumentTexts, numbers: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The documents outside and inside of each part."""
    if split.folds is None:
        parts = KFold(min(_PARTS, len(numbers)), shuffle=True, random_state=0)
        return list(parts.split(numbers))
    groups = np.array(split.folds)[numbers]
    if len(np.unique(groups)) < 2:
        raise DataError(
            f"{split.name} must have documents in two parts (`fold`), but all {len(numbers)} that "
            f"are used are in the part {groups[0]}; give more documents, or leave `fold` out."
        )
    return list(LeaveOneGroupOut().split(numbers, groups=groups))
