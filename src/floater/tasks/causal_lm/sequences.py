"""Sequences of tokens from text, in which every token is predicted once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import DataError
from ..language_model.text import (
    Text,
    pieces,
    special_tokens,
    tokens_of_lines,
    too_little,
)
from ..language_model.token_rows import TokenRows


class Sequences(Dataset[dict[str, list[int]]]):
    """Token sequences; all tokens but the first ones are predicted.

    Args:
        rows: tokens of each sequence.
        context: number of tokens at the start of each sequence that are not predicted.
    """

    def __init__(self, rows: TokenRows, context: int = 1) -> None:
        self._rows, self._context = rows, context

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return self._rows.lengths

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        tokens = self._rows[number].tolist()
        return {
            "input_ids": tokens,
            "attention_mask": [1] * len(tokens),
            "labels": [*[-100] * self._context, *tokens[self._context :]],
        }


class SkippingSequences(Sequences):
    """Parts of long sequences: some tokens from the beginning, then others from later on, each at
    its own position, so that a short input has the distances of a long one.

    Where tokens are skipped, the next one is not predicted. What is skipped depends on seed, epoch
    and sequence only.

    Args:
        rows: tokens of each sequence.
        context: number of tokens at the start of each sequence that are not predicted.
        length: tokens of an input.
        skips: number of places where tokens are skipped.
        seed: of the places.
    """

    def __init__(self, rows: TokenRows, context: int, length: int, skips: int, seed: int) -> None:
        super().__init__(rows, context)
        self._length, self._skips, self._seed = length, skips, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that determines what is skipped."""
        self._epoch = epoch

    def lengths(self) -> np.ndarray:
        lengths: np.ndarray = np.minimum(super().lengths(), self._length)
        return lengths

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        row = self._rows[number]
        places = np.arange(min(len(row), self._length))
        random = np.random.default_rng([self._seed, self._epoch, number])
        cuts = np.sort(random.integers(self._context, self._length, self._skips))
        most, reach = len(row) - len(places), self._length
        # numbers past both ends count as the ends, so that the end of a sequence is seen as often
        # as its middle
        skipped = np.sort(random.integers(-reach, most + reach + 1, self._skips)).clip(0, most)
        before = np.searchsorted(cuts, places, side="right")
        places = places + np.concatenate([[0], skipped])[before]
        tokens = row[places]
        follows = np.diff(places, prepend=-1) == 1
        follows[: self._context] = False
        return {
            "input_ids": tokens.tolist(),
            "attention_mask": [1] * len(tokens),
            "position_ids": places.tolist(),
            "labels": np.where(follows, tokens, -100).tolist(),
        }


def sequences(
    text: Text,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    *,
    apart: bool = False,
    most: int | None = None,
    window: int | None = None,
    skips: int = 0,
    seed: int = 0,
) -> Sequences:
    """Cut the tokens of a text into sequences.

    A sequence begins with the start token that the tokenizer adds; if it adds none, with the last
    token of the sequence before. Either way every token is predicted once, except for the very
    first where there is no start token.

    Args:
        text: the text.
        tokenizer: the model's.
        length: tokens per sequence.
        apart: each line is a document, begins a sequence and ends with the tokenizer's end token,
            if it adds one; otherwise lines and the line breaks between them are concatenated, and
            every sequence but the last is full.
        most: return only this many sequences, the first ones; the rest of the text is not read.
        window: tokens of an input, which are parts of a sequence; None for all of them.
        skips: number of places where an input skips tokens of its sequence.
        seed: of these places.
    """
    before, after = special_tokens(tokenizer)
    context = max(1, len(before))
    room = length - context
    if room < 1:
        raise DataError(
            f"`max_length` must leave room for a token to predict after {context}, but is {length}."
        )
    ending = "" if apart else "\n"
    lines = tokens_of_lines(text, tokenizer, ending=ending)
    end = np.array(after, np.int64)
    documents = ([np.concatenate([line, end])] for line in lines) if apart else [lines]
    found = (row for document in documents for row in _rows(document, before, room))
    rows = TokenRows(itertools.islice(found, most))
    if not len(rows):
        raise too_little(
            text, context + 1 - len(before), tokens_of_lines(text, tokenizer, ending=ending)
        )
    if window is not None:
        return SkippingSequences(rows, context, window, skips, seed)
    return Sequences(rows, context)


def _rows(lines: Iterable[np.ndarray], before: Sequence[int], room: int) -> Iterator[np.ndarray]:
    """One document, the tokens of its lines, as sequences of at most `room` predicted tokens."""
    if not before:
        return pieces(lines, room, shared=1)
    start = np.array(before, np.int64)
    return (np.concatenate([start, piece]) for piece in pieces(lines, room))
