"""Two texts as one input: each is encoded once, and put between the special tokens as often as it
is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import ArgumentError

_TOGETHER = 1000  # texts a call of the tokenizer


@dataclass(frozen=True)
class Encoded:
    """A text as tokens [tokens], with the characters [tokens, 2] that each was made of: from, and
    up to.
    """

    tokens: np.ndarray
    offsets: np.ndarray


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Encoded]:
    """Texts without special tokens, whole.

    A text that occurs several times is encoded, and kept, once.
    """
    found = {}
    distinct = list(dict.fromkeys(texts))
    for first in range(0, len(distinct), _TOGETHER):
        these = distinct[first : first + _TOGETHER]
        part = tokenizer(
            these,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for text, tokens, offsets in zip(
            these, part["input_ids"], part["offset_mapping"], strict=True
        ):
            found[text] = Encoded(
                np.array(tokens, dtype=np.int32), np.array(offsets, dtype=np.int32).reshape(-1, 2)
            )
    return [found[text] for text in texts]


@dataclass(frozen=True)
class Frame:
    """The special tokens before, between and behind two texts, and the type of each token where a
    model knows types.

    `types` are those of the tokens before, the first text, the tokens between, the second text, the
    tokens behind.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]] | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        """What a tokenizer puts around a pair; seen on one."""
        if not tokenizer.is_fast:
            raise ArgumentError(
                "`tokenizer` must be a fast one, which knows the characters of its tokens, but is "
                f"a {type(tokenizer).__name__}; load it with AutoTokenizer from a folder with a "
                "tokenizer.json."
            )
        probe = tokenizer("a", "a")
        sides = probe.sequence_ids(0)
        if 0 not in sides or 1 not in sides:
            raise ArgumentError(
                "`tokenizer` must give tokens for the text 'a', but gives none; its vocabulary is "
                "too small."
            )
        first, second = sides.index(0), sides.index(1)
        parts = (
            slice(first),
            slice(first + sides.count(0), second),
            slice(second + sides.count(1), None),
        )
        before, between, behind = (tuple(probe["input_ids"][part]) for part in parts)
        kinds = probe.get("token_type_ids")
        if kinds is None:
            return cls(before, between, behind, None)
        ends = [tuple(kinds[part]) for part in parts]
        return cls(
            before, between, behind, (ends[0], kinds[first], ends[1], kinds[second], ends[2])
        )

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.behind)

    def second(self, first: int) -> int:
        """The place of the second text's first token, where the first text has so many."""
        return len(self.before) + first + len(self.between)

    def join(self, first: Sequence[int], second: Sequence[int]) -> dict[str, list[int]]:
        """The inputs of a model, not padded."""
        tokens = [*self.before, *first, *self.between, *second, *self.behind]
        found = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
        if self.types is not None:
            before, one, between, two, behind = self.types
            found["token_type_ids"] = [
                *before,
                *[one] * len(first),
                *between,
                *[two] * len(second),
                *behind,
            ]
        return found
