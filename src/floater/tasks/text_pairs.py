"""Pairs of texts as model inputs: each text is encoded once, and joined with special tokens when an
input is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError

_BATCH = 1000  # texts per call of the tokenizer


@dataclass(frozen=True)
class Encoded:
    """A text as tokens [tokens], with the first and the end character of each [tokens, 2]."""

    tokens: np.ndarray
    offsets: np.ndarray


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Encoded]:
    """Encode texts without special tokens and without truncation; equal texts share one result."""
    encoded = {}
    distinct = list(dict.fromkeys(texts))
    for first in range(0, len(distinct), _BATCH):
        batch = distinct[first : first + _BATCH]
        outputs = tokenizer(
            batch,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for text, tokens, offsets in zip(
            batch, outputs["input_ids"], outputs["offset_mapping"], strict=True
        ):
            encoded[text] = Encoded(
                np.array(tokens, dtype=np.int32), np.array(offsets, dtype=np.int32).reshape(-1, 2)
            )
    return [encoded[text] for text in texts]


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer adds to two texts.

    Attributes:
        before, between, after: the special tokens around the two texts.
        types: token types of the tokens before, of the first text, of the tokens between, of the
            second text and of the tokens after; None if the model has no token types.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]] | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        """Find out what a tokenizer adds, from a sample pair."""
        if not tokenizer.is_fast:
            raise ArgumentError(
                "`tokenizer` must be a fast one, which reports character offsets, but is a "
                f"{type(tokenizer).__name__}; load it with AutoTokenizer from a folder with a "
                "tokenizer.json."
            )
        probe = tokenizer("a", "a")
        sides = probe.sequence_ids(0)
        if 0 not in sides or 1 not in sides:
            raise ArgumentError(
                "`tokenizer` must return tokens for the text 'a', but returns none; its vocabulary "
                "is too small."
            )
        first, second = sides.index(0), sides.index(1)
        slices = (
            slice(first),
            slice(first + sides.count(0), second),
            slice(second + sides.count(1), None),
        )
        before, between, after = (tuple(probe["input_ids"][chosen]) for chosen in slices)
        types = probe.get("token_type_ids")
        if types is None:
            return cls(before, between, after, None)
        ends = [tuple(types[chosen]) for chosen in slices]
        return cls(before, between, after, (ends[0], types[first], ends[1], types[second], ends[2]))

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def second(self, first: int) -> int:
        """Index of the second text's first token if the first text has `first` tokens."""
        return len(self.before) + first + len(self.between)

    def join(self, first: Sequence[int], second: Sequence[int]) -> dict[str, list[int]]:
        """The model inputs for two encoded texts, not padded."""
        tokens = [*self.before, *first, *self.between, *second, *self.after]
        inputs = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
        if self.types is not None:
            before, of_first, between, of_second, after = self.types
            inputs["token_type_ids"] = [
                *before,
                *[of_first] * len(first),
                *between,
                *[of_second] * len(second),
                *after,
            ]
        return inputs
