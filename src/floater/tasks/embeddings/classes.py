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
        if len(known) < 2:
            raise DataError(
                f"{split.name} must have documents of two classes outside each part, but has not."
            )
        model = LogisticRegression(C=_STRENGTH, max_iter=1000).fit(vectors[others], labels[others])
        likely = model.predict_proba(vectors[own])
        columns = np.searchsorted(known, labels[own]).clip(max=len(known) - 1)
        right = np.take_along_axis(likely, columns[:, None], 1)
        # a class that the classifier has not seen stays last
        seen = known[columns] == labels[own]
        ranks[own] = np.where(seen, (likely >= right).sum(1), len(classes))
    return ranks


def _parts(split: DocumentTexts, numbers: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The documents outside and inside of each part."""
    if split.folds is None:
        parts = KFold(min(_PARTS, len(numbers)), shuffle=True, random_state=0)
        return list(parts.split(numbers))
    groups = np.array(split.folds)[numbers]
    if len(np.unique(groups)) < 2:
        raise DataError(f"{split.name} must have documents in two parts, but all are in one.")
    return list(LeaveOneGroupOut().split(numbers, groups=groups))
