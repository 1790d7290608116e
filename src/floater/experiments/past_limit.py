"""A pretrained model reads past its last position: long lists whose end tells what they are about.

The first part of a list are numbers in words, until the positions of the model are used up. Then
come names of one kind. A search for other names of that kind should find these lists; whoever reads
their beginnings alone must guess. The kinds were chosen so that the model tells them apart at all;
docs/reproduce.md has the scores of the forms that were tried before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from ..attachments import extend

KINDS = ("currencies", "languages", "territories")
"""Kinds of names, as babel calls them."""
_LISTS = 5
"""Lists of each kind."""
_ASKED = 20
"""Names of which a question consists."""
_STEP = 10
"""Parts that are appended to a list at a time."""
_ROOM = 100
"""Positions of the extended model that a list may leave free."""


@dataclass(frozen=True)
class ReadingCheck:
    """How many of the lists that a search finds are of the right kind.

    Attributes:
        lists: number of lists.
        kinds: number of kinds.
        tokens: of the shortest list.
        before: positions of the model itself.
        after: positions of the extended model.
        truncated: share of right lists if the model reads what its own positions allow.
        extended: the same if the extended model reads everything.
        unchanged: whether the extended model has the same outputs on short inputs, bit for bit.
    """

    lists: int
    kinds: int
    tokens: int
    before: int
    after: int
    truncated: float
    extended: float
    unchanged: bool


@torch.no_grad()
def read_past_limit(folder: Path) -> ReadingCheck:
    """Extend a model to twice its positions, and let both search long lists.

    Args:
        folder: of an embedding model with a position table.
    """
    logging.disable_progress_bar()
    safe = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **safe)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, **safe).eval()
    before = int(model.config.max_position_embeddings)
    lists, questions = _lists(tokenizer, before), _questions()
    sizes = [len(row) for row in tokenizer(lists, verbose=False)["input_ids"]]
    asked = torch.stack([_embed(model, tokenizer, text, before) for text in questions])
    truncated = _share_right(model, tokenizer, lists, before, asked)
    short = tokenizer(questions[0], return_tensors="pt")
    states = model(**short).last_hidden_state
    extend(model, 2 * before, learned=False).bake(2 * before)
    return ReadingCheck(
        len(lists),
        len(KINDS),
        min(sizes),
        before,
        2 * before,
        truncated,
        _share_right(model, tokenizer, lists, 2 * before, asked),
        torch.equal(model(**short).last_hidden_state, states),
    )


def _share_right(
    model: Any, tokenizer: Any, texts: list[str], longest: int, asked: Tensor
) -> float:
    """How many of the texts that are closest to each question are of its kind, as a share."""
    vectors = torch.stack([_embed(model, tokenizer, text, longest) for text in texts])
    found = (asked @ vectors.T).topk(_LISTS).indices // _LISTS
    return float((found == torch.arange(len(asked)).unsqueeze(1)).double().mean())


def _embed(model: Any, tokenizer: Any, text: str, longest: int) -> Tensor:
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
    mean: Tensor = model(**inputs).last_hidden_state[0].mean(0)
    vector: Tensor = mean / mean.norm()
    return vector


def _names(kind: str) -> list[str]:
    """Names in a random order that is always the same."""
    from babel import Locale  # noqa: PLC0415  (only generated text needs it)

    names = sorted(set(getattr(Locale("en"), kind).values()))
    random.Random(kind).shuffle(names)
    return names


def _questions() -> list[str]:
    """Names of every kind that no list holds."""
    return [", ".join(_names(kind)[:_ASKED]) for kind in KINDS]


def _lists(tokenizer: Any, positions: int) -> list[str]:
    """Lists of every kind that begin with numbers until all positions are used up."""
    from num2words import num2words  # noqa: PLC0415  (only generated text needs it)

    draw, lists = random.Random(0), []
    for kind in KINDS:
        names = _names(kind)[_ASKED:]
        for _ in range(_LISTS):
            numbers = (num2words(draw.randrange(1000)) for _ in range(positions))
            ending = iter(draw.sample(names, len(names)))
            text = _fill("", numbers, tokenizer, positions)
            lists.append(_fill(text, ending, tokenizer, 2 * positions - _ROOM))
    return lists


def _fill(text: str, parts: Iterator[str], tokenizer: Any, tokens: int) -> str:
    """Append parts to a text until it has so many tokens, or there are no more."""
    while len(tokenizer(text, verbose=False)["input_ids"]) < tokens and (
        more := list(islice(parts, _STEP))
    ):
        text += ", ".join(more) + ", "
    return text
