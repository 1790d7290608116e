"""The best answer spans of each question, and the score of no answer, from the logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...errors import ArgumentError
from .data import SquadQuestion
from .features import Windows

_BATCH = 256  # windows that are searched at a time


@dataclass(frozen=True)
class AnswerSpan:
    """First and end character of an answer in the context, and the sum of its two logits."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Prediction:
    """The best spans of a question, best first, and the score of having no answer.

    Attributes:
        question: the question.
        spans: empty only if the context has no token.
        null: the score of no answer, the smallest over the windows.
    """

    question: SquadQuestion
    spans: tuple[AnswerSpan, ...]
    null: float

    @property
    def gap(self) -> float:
        """Score of no answer minus score of the best span."""
        return self.null - self.spans[0].score if self.spans else math.inf

    def cut(self, span: AnswerSpan) -> str:
        """The text of a span."""
        return self.question.context[span.start : span.end].strip()

    def text(self, threshold: float = math.inf) -> str:
        """The text of the best span, or "" if the gap exceeds the threshold.

        The default never exceeds it, as version 1.1 always answers.
        """
        return self.cut(self.spans[0]) if self.spans and self.gap <= threshold else ""


def texts(predictions: Sequence[Prediction], threshold: float = math.inf) -> Mapping[str, str]:
    """The answers as {id: text}, the format of prediction files."""
    return {prediction.question.id: prediction.text(threshold) for prediction in predictions}


def predict(
    windows: Windows, start: np.ndarray, end: np.ndarray, *, longest: int = 30, count: int = 20
) -> list[Prediction]:
    """Find the best spans of every question over all of its windows.

    A span begins and ends at context tokens of one window that cover characters, and has at most
    `longest` tokens. A span that is found in several windows counts once, with its best score.
    Spans with equal scores are ordered by start, then by length.

    Args:
        windows: the inputs of the model.
        start: logits of the first token [windows, tokens]; padding is ignored.
        end: logits of the last token, in the same shape.
        longest: tokens per answer.
        count: spans per question.
    """
    start, end = (
        _checked(windows, logits, name) for logits, name in ((start, "start"), (end, "end"))
    )
    for name, value in (("longest", longest), ("count", count)):
        if value < 1:
            raise ArgumentError(f"`{name}` must be ≥ 1, but is {value}.")
    null = np.full(len(windows.questions), np.inf)
    np.minimum.at(null, windows.owner, start[:, 0].astype(np.float64) + end[:, 0])
    duplicates = np.array(
        [_duplicates(windows.offsets(number)) for number in range(len(windows))], dtype=np.int64
    )
    candidates = [
        _search(windows, rows, start, end, longest, count * int(duplicates[rows].max(initial=1)))
        for rows in _batches(windows, duplicates)
    ]
    spans = _merged(np.concatenate(candidates), count)
    edges = np.searchsorted(spans["owner"], np.arange(len(windows.questions) + 1))
    listed = [AnswerSpan(*span) for span in spans[["start", "end", "score"]].tolist()]
    return [
        Prediction(question, tuple(listed[low:high]), float(no_answer))
        for question, no_answer, low, high in zip(
            windows.questions, null, edges[:-1], edges[1:], strict=True
        )
    ]


_SPAN = np.dtype(
    [("owner", np.int64), ("start", np.int64), ("end", np.int64), ("score", np.float64)]
)


def _checked(windows: Windows, logits: np.ndarray, name: str) -> np.ndarray:
    lengths = windows.lengths()
    width = int(lengths.max(initial=1))
    if logits.ndim != 2 or len(logits) != len(windows) or logits.shape[1] < width:
        raise ArgumentError(
            f"`{name}` must be [{len(windows)} windows, at least {width} tokens], but is "
            f"{list(logits.shape)}; give the logits of all windows, in order."
        )
    inside = np.arange(logits.shape[1]) < lengths[:, None]
    if not np.isfinite(logits).all(where=inside):
        row = int(np.argmin(np.isfinite(logits).all(1, where=inside)))
        question = windows.questions[windows.owner[row]]
        raise ArgumentError(
            f"`{name}` must be finite, but is not for question {question.id}; did the training "
            "diverge?"
        )
    return logits


def _duplicates(offsets: np.ndarray) -> int:
    """Largest number of token spans that cover the same characters of a window.

    Several tokens can belong to one character, such as the bytes of an emoji.
    """
    product = 1
    for column in offsets.T:
        run = 1
        while (column[run:] == column[:-run]).any():
            run += 1
        product *= run
    return product


def _batches(windows: Windows, duplicates: np.ndarray) -> list[np.ndarray]:
    """Numbers of windows to search together, which have similar numbers of context tokens."""
    order = np.lexsort((windows.counts(), duplicates))
    return np.array_split(order, max(1, math.ceil(len(order) / _BATCH)))


def _search(
    windows: Windows, rows: np.ndarray, start: np.ndarray, end: np.ndarray, longest: int, count: int
) -> np.ndarray:
    """The best spans of each of some windows."""
    counts = windows.counts()[rows]
    width = int(counts.max(initial=0))
    if not width:
        return np.empty(0, _SPAN)
    offsets = np.zeros((len(rows), width, 2), dtype=np.int64)
    for number, row in enumerate(rows):
        offsets[number, : counts[number]] = windows.offsets(row)
    usable = offsets[:, :, 1] > offsets[:, :, 0]  # neither padding nor a token without characters
    indices = np.minimum(windows.first[rows][:, None] + np.arange(width), start.shape[1] - 1)
    begins, ends = (
        np.where(usable, np.take_along_axis(logits[rows], indices, 1), -np.inf)
        for logits in (start, end)
    )
    first, last, score = best_spans(
        begins.astype(np.float64), ends.astype(np.float64), longest, count
    )
    line, column = np.nonzero(np.isfinite(score))
    spans = np.empty(len(line), _SPAN)
    spans["owner"] = windows.owner[rows][line]
    spans["start"] = offsets[line, first[line, column], 0]
    spans["end"] = offsets[line, last[line, column], 1]
    spans["score"] = score[line, column]
    return spans


def best_spans(
    start: np.ndarray, end: np.ndarray, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First indices, last indices and scores [rows, up to count] of the best spans of each row.

    They are sorted, best first; a score of -inf means that there is no further span. The `count`
    best spans begin at the `count` indices whose own best span is best, so only spans from these
    are ranked.

    Args:
        start: scores of the first token [rows, tokens], -inf where no span may begin.
        end: scores of the last token.
        longest: tokens per span.
        count: spans per row.
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


def _merged(spans: np.ndarray, count: int) -> np.ndarray:
    """Remove duplicates and keep the best `count` spans of each question, by question and rank."""
    by_span = np.lexsort((-spans["score"], spans["end"], spans["start"], spans["owner"]))
    spans = spans[by_span]
    repeated = np.zeros(len(spans), dtype=bool)
    repeated[1:] = spans[["owner", "start", "end"]][1:] == spans[["owner", "start", "end"]][:-1]
    spans = spans[~repeated]
    spans = spans[np.lexsort((spans["end"], spans["start"], -spans["score"], spans["owner"]))]
    rank = np.arange(len(spans)) - np.searchsorted(spans["owner"], spans["owner"])
    return spans[rank < count]
