"""Text → blocks of tokens, and which of them are hidden."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...errors import DataError
from ...files import digest

_TOGETHER = 1000  # lines a call of the tokenizer
_SHORTEST = 4  # tokens of a block; less says nothing
_JOINED = re.compile(r" @([-,.])@ ")
_HEADING = re.compile(r"^(= )+(.*?)( =)+$")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|n't\b)")
_AFTER = re.compile(r"([(\[{$]) ")


@dataclass(frozen=True)
class Text:
    """Lines of one or several files."""

    lines: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.lines)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder remembers of its data."""
        return {"from": self.name, "lines": len(self), "sha256": digest(self.lines)}


def from_wikitext(line: str, unknown: str) -> str:
    """A line of a WikiText token file as one would write it: marks of headings and of split numbers
    undone, spaces closed up.
    """
    line = _HEADING.sub(r"\2", line.strip())
    line = _JOINED.sub(r"\1", line).replace("<unk>", unknown)
    return _AFTER.sub(r"\1", _BEFORE.sub(r"\1", line))


class Blocks(Dataset[dict[str, list[int]]]):
    """A text cut into blocks, with tokens hidden as BERT does: of those chosen 80 % masked, 10 %
    exchanged, 10 % left.

    Which ones follows from the seed, the epoch and the number of the block, so that every start of
    a run hides the same.

    Args:
        rows: tokens of each block, without special ones.
        tokenizer: the model's.
        share: of the tokens to hide.
        seed: of what is hidden.
    """

    def __init__(
        self,
        rows: Sequence[np.ndarray],
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
        self._before, self._behind = _around(tokenizer)
        self._mask = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._special = np.array(sorted(special))
        self._words = np.array(
            [number for number in range(len(tokenizer)) if number not in special]
        )
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose hidden tokens come next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> np.ndarray:
        """Tokens of each block, special ones included."""
        return np.array([len(row) + len(self._before) + len(self._behind) for row in self._rows])

    def counts(self, size: int) -> np.ndarray:
        """How often each of the first `size` tokens occurs."""
        return np.bincount(np.concatenate(self._rows), minlength=size)[:size]

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        row = self._rows[number]
        random = np.random.default_rng([self._seed, self._epoch, number])
        free = ~np.isin(row, self._special)
        hidden = free & (random.random(len(row)) < self._share)
        if not hidden.any():
            hidden[random.choice(np.flatnonzero(free) if free.any() else len(row))] = True
        what = random.random(len(row))
        seen = np.where(hidden & (what < 0.8), self._mask, row)
        seen = np.where(hidden & (what >= 0.9), random.choice(self._words, len(row)), seen)
        wanted = np.where(hidden, row, -100)
        tokens = [*self._before, *seen.tolist(), *self._behind]
        return {
            "input_ids": tokens,
            "attention_mask": [1] * len(tokens),
            "labels": [*[-100] * len(self._before), *wanted.tolist(), *[-100] * len(self._behind)],
        }


def cut(
    text: Text, tokenizer: PreTrainedTokenizerBase, length: int, *, apart: bool = False
) -> list[np.ndarray]:
    """The tokens of a text in blocks of at most `length`, with the special tokens around them.

    Args:
        text: its lines.
        tokenizer: the model's.
        length: tokens of a block.
        apart: each line begins a block of its own; else they follow each other, and every block but
            the last is full.
    """
    room = length - sum(map(len, _around(tokenizer)))
    if room < _SHORTEST:
        raise DataError(
            f"`max_length` must leave room for {_SHORTEST} tokens and the special ones, but is "
            f"{length}."
        )
    lines = [line for line in text.lines if line.strip()]
    found: list[Any] = []
    for first in range(0, len(lines), _TOGETHER):
        part = lines[first : first + _TOGETHER]
        encoded = tokenizer(
            part,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        found += [np.array(row, dtype=np.int64) for row in encoded["input_ids"]]
    parts = found if apart else [np.concatenate(found)] if found else []
    rows = [
        row
        for part in parts
        for row in np.split(part, range(room, len(part), room))
        if len(row) >= _SHORTEST
    ]
    if not rows:
        raise DataError(
            f"{text.name} must hold at least {_SHORTEST} tokens of text, but holds "
            f"{sum(map(len, found))}."
        )
    return rows


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and behind a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next(place for place in range(len(whole)) if whole[place : place + len(inner)] == inner)
    return whole[:first], whole[first + len(inner) :]
