"""GLUE's measures, computed by scikit-learn and scipy, and the same measures for resampling."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy.stats import ConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from ..understanding import resampling
from ..understanding.problem import Measure

RESAMPLED: dict[str, Measure] = {
    "accuracy": resampling.accuracy,
    "f1": resampling.f1,
    "matthews": resampling.matthews,
    "pearson": resampling.pearson,
    "spearman": resampling.spearman,
}


def score(measure: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Compute a measure in per cent; a correlation with constant values is 0."""
    return 100 * _MEASURES[measure](predictions, labels)


def _correlation(
    function: Callable[[np.ndarray, np.ndarray], tuple[float, float]],
) -> Callable[[np.ndarray, np.ndarray], float]:
    def measure(predictions: np.ndarray, labels: np.ndarray) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantInputWarning)
            return float(np.nan_to_num(function(predictions, labels)[0]))

    return measure


_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda predictions, labels: float(accuracy_score(labels, predictions)),
    "f1": lambda predictions, labels: float(f1_score(labels, predictions, zero_division=0.0)),
    "matthews": lambda predictions, labels: float(matthews_corrcoef(labels, predictions)),
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
}
