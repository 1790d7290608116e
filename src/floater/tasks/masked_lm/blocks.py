"""Blocks of tokens from text, and which of them are masked."""

from __future__ import annotations

import itertools

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

_SHORTEST = 4  # tokens of a block; shorter ones give no context to predict from


class Blocks(Dataset[dict[str, list[int]]]):
    """Blocks of text with masked tokens as in BERT: of the chosen tokens, 80 % are replaced by the
    mask, 10 % by a random token, and 10 % are left unchanged.

    The choice depends on seed, epoch and block number only, so that a resumed run masks the same
    tokens.

    Args:
        rows: tokens of each block, without special tokens.
        tokenizer: the model's.
        share: share of the tokens to mask.
        seed: seed of the choice.
    """

    def __init__(
        self,
        rows: TokenRows,
        tokenizer: PreTrainedTokenizerBase,
        share: float,
        seed: int,
    ) -> None:
        if tokenizer.mask_token_id is None:
            raise DataError(
                "The tokenizer must have a mask token, but has none; masked language modelling "
                "needs one."
            )
        self._rows, self._share, self._seed = rows, share, seed
        self._before, self._after = special_tokens(tokenizer)
        self._mask = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._special = np.array(sorted(special))
        self._vocabulary = np.array(
            [number for number in range(len(tokenizer)) if number not in special]
        )
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that determines the masked tokens."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> np.ndarray:
        """Tokens of each block, including special tokens."""
        lengths: np.ndarray = self._rows.lengths + len(self._before) + len(self._after)
        return lengths

    def counts(self, size: int) -> np.ndarray:
        """How often each of the first `size` tokens occurs."""
        return self._rows.counts(size)

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        row = self._rows[number]
        random = np.random.default_rng([self._seed, self._epoch, number])
        free = ~np.isin(row, self._special)
        masked = free & (random.random(len(row)) < self._share)
        if not masked.any():
            masked[random.choice(np.flatnonzero(free) if free.any() else len(row))] = True
        action = random.random(len(row))
        seen = np.where(masked & (action < 0.8), self._mask, row)
        seen = np.where(masked & (action >= 0.9), random.choice(self._vocabulary, len(row)), seen)
        labels = np.where(masked, row, -100)
        tokens = [*self._before, *seen.tolist(), *self._after]
        return {
            "input_ids": tokens,
            "attention_mask": [1] * len(tokens),
            "labels": [*[-100] * len(self._before), *labels.tolist(), *[-100] * len(self._after)],
        }


def cut(
    text: Text,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    *,
    apart: bool = False,
    most: int | None = None,
) -> TokenRows:
    """Cut the tokens of a text into blocks.

    Args:
        text: the text.
        tokenizer: the model's.
        length: tokens per block, including the special tokens that are added later.
        apart: begin a new block with each line; otherwise lines are concatenated, and every block
            but the last is full.
        most: return only this many blocks, the first ones; the rest of the text is not read.

    Returns:
        The tokens of each block, without special tokens.
    """
    room = length - sum(map(len, special_tokens(tokenizer)))
    if room < _SHORTEST:
        raise DataError(
            f"`max_length` must leave room for {_SHORTEST} tokens and the special tokens, but is "
            f"{length}."
        )
    encoded = tokens_of_lines(text, tokenizer)
    documents = ([line] for line in encoded) if apart else [encoded]
    blocks = (block for lines in documents for block in pieces(lines, room))
    rows = TokenRows(itertools.islice((block for block in blocks if len(block) >= _SHORTEST), most))
    if not len(rows):
        raise too_little(text, _SHORTEST, tokens_of_lines(text, tokenizer))
    return rows
