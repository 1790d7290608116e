"""Logits of all windows of a question → its best answers, and how they compare with none at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...errors import ArgumentError
from .data import SquadQuestion
from .features import Windows

_TOGETHER = 256  # windows searched at a time


@dataclass(frozen=True)
class AnswerSpan:
    """Characters of the context, from and up to, and the sum of the two logits that speak for
    them.
    """

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Prediction:
    """The best spans of a question, best first, and the score of having no answer: its smallest
    over the windows.

    There is no span only where the context has no token.
    """

    question: SquadQuestion
    spans: tuple[AnswerSpan, ...]
    null: float

    @property
    def gap(self) -> float:
        """By how much having no answer scores above the best span."""
        return self.null - self.spans[0].score if self.spans else math.inf

    def cut(self, span: AnswerSpan) -> str:
        """The text of a span, cut from the context."""
        return self.question.context[span.start : span.end].strip()

    def text(self, threshold: float = math.inf) -> str:
        """The text of the best span, or "" where the gap exceeds the threshold.

        Version 1.1 always answers: no threshold.
        """
        return self.cut(self.spans[0]) if self.spans and self.gap <= threshold else ""


def texts(predictions: Sequence[Prediction], threshold: float = math.inf) -> Mapping[str, str]:
    """{id: text}, as files of predictions hold it."""
    return {prediction.question.id: prediction.text(threshold) for prediction in predictions}


def predict(
    windows: Windows, start: np.ndarray, end: np.ndarray, *, longest: int = 30, count: int = 20
) -> list[Prediction]:
    """The best spans of every question over all of its windows.

    A span begins and ends at context tokens of one window that have characters, ends no earlier
    than it begins and has at most `longest` tokens. A span found in several windows counts once,
    with its best score. Of equal scores the earlier span comes first, then the shorter one.

    Args:
        windows: what the model saw.
        start: logits of beginning [windows, places]; what lies behind a window's tokens is not
            looked at.
        end: logits of ending, of the same shape.
        longest: tokens an answer.
        count: spans a question.
    """
    start, end = (
        _checked(windows, logits, name) for logits, name in ((start, "start"), (end, "end"))
    )
    for name, value in (("longest", longest), ("count", count)):
        if value < 1:
            raise ArgumentError(f"`{name}` must be ≥ 1, but is {value}.")
    null = np.full(len(windows.questions), np.inf)
    np.minimum.at(null, windows.owner, start[:, 0].astype(np.float64) + end[:, 0])
    alike = np.array(
        [_alike(windows.offsets(number)) for number in range(len(windows))], dtype=np.int64
    )
    found = [
        _search(windows, rows, start, end, longest, count * int(alike[rows].max(initial=1)))
        for rows in _parts(windows, alike)
    ]
    spans = _merged(np.concatenate(found), count)
    edges = np.searchsorted(spans["owner"], np.arange(len(windows.questions) + 1))
    listed = [AnswerSpan(*span) for span in spans[["start", "end", "score"]].tolist()]
    return [
        Prediction(question, tuple(listed[low:high]), float(none))
        for question, none, low, high in zip(
            windows.questions, null, edges[:-1], edges[1:], strict=True
        )
    ]


_FOUND = np.dtype(
    [("owner", np.int64), ("start", np.int64), ("end", np.int64), ("score", np.float64)]
)


def _checked(windows: Windows, logits: np.ndarray, name: str) -> np.ndarray:
    lengths = windows.lengths()
    width = int(lengths.max(initial=1))
    if logits.ndim != 2 or len(logits) != len(windows) or logits.shape[1] < width:
        raise ArgumentError(
            f"`{name}` must be [{len(windows)} windows, at least {width} places], but is "
            f"{list(logits.shape)}; give the logits of all windows, in order."
        )
    inside = np.arange(logits.shape[1]) < lengths[:, None]
    if not np.isfinite(logits).all(where=inside):
        row = int(np.argmin(np.isfinite(logits).all(1, where=inside)))
        asked = windows.questions[windows.owner[row]].id
        raise ArgumentError(
            f"`{name}` must be finite, but is not for question {asked}; did the training diverge?"
        )
    return logits


def _alike(offsets: np.ndarray) -> int:
    """How many spans of a window's tokens may stand for the same characters: tokens can share one,
    as bytes of an emoji do.
    """
    found = 1
    for column in offsets.T:
        most = 1
        while (column[most:] == column[:-most]).any():
            most += 1
        found *= most
    return found


def _parts(windows: Windows, alike: np.ndarray) -> list[np.ndarray]:
    """Numbers of windows to search together: those with about equally many context tokens."""
    order = np.lexsort((windows.counts(), alike))
    return np.array_split(order, max(1, math.ceil(len(order) / _TOGETHER)))


def _search(
    windows: Windows, rows: np.ndarray, start: np.ndarray, end: np.ndarray, longest: int, count: int
) -> np.ndarray:
    """The best spans of some windows, each by itself."""
    counts = windows.counts()[rows]
    width = int(counts.max(initial=0))
    if not width:
        return np.empty(0, _FOUND)
    offsets = np.zeros((len(rows), width, 2), dtype=np.int64)
    for place, row in enumerate(rows):
        offsets[place, : counts[place]] = windows.offsets(row)
    usable = offsets[:, :, 1] > offsets[:, :, 0]  # neither padding nor a token without characters
    places = np.minimum(windows.first[rows][:, None] + np.arange(width), start.shape[1] - 1)
    begins, ends = (
        np.where(usable, np.take_along_axis(logits[rows], places, 1), -np.inf)
        for logits in (start, end)
    )
    first, last, score = best_spans(
        begins.astype(np.float64), ends.astype(np.float64), longest, count
    )
    line, column = np.nonzero(np.isfinite(score))
    found = np.empty(len(line), _FOUND)
    found["owner"] = windows.owner[rows][line]
    found["start"] = offsets[line, first[line, column], 0]
    found["end"] = offsets[line, last[line, column], 1]
    found["score"] = score[line, column]
    return found


def best_spans(
    start: np.ndarray, end: np.ndarray, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First places, last places and scores [rows, up to count] of the best spans of each row, best
    first; -inf where there is none.

    The `count` best spans begin at the `count` places whose own best span is best, so only those
    are looked at in full.

    Args:
        start: scores of beginning [rows, places], -inf where no span may begin.
        end: scores of ending.
        longest: places a span.
        count: spans a row.
    """
    longest = min(longest, start.shape[1])
    ends = sliding_window_view(
        np.pad(end, ((0, 0), (0, longest - 1)), constant_values=-np.inf), longest, axis=1
    )
    peaks = start + ends.max(2)
    begins = np.sort(np.argsort(-peaks, axis=1, kind="stable")[:, :count], axis=1)
    scores = (
        np.take_along_axis(start, begins, 1)[:, :, None]
        + ends[np.arange(len(start))[:, None], begins]
    )
    flat = scores.reshape(len(start), -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, :count]
    first = np.take_along_axis(begins, order // longest, 1)
    return first, first + order % longest, np.take_along_axis(flat, order, 1)


def _merged(found: np.ndarray, count: int) -> np.ndarray:
    """Every span of a question once, and the best `count` of them, by question and rank."""
    by_span = np.lexsort((-found["score"], found["end"], found["start"], found["owner"]))
    found = found[by_span]
    again = np.zeros(len(found), dtype=bool)
    again[1:] = found[["owner", "start", "end"]][1:] == found[["owner", "start", "end"]][:-1]
    found = found[~again]
    found = found[np.lexsort((found["end"], found["start"], -found["score"], found["owner"]))]
    rank = np.arange(len(found)) - np.searchsorted(found["owner"], found["owner"])
    return found[rank < count]
