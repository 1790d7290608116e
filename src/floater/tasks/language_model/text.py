"""Text from files, and its tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...errors import DataError
from ...files import digest, iterate_lines
from ..schema import field, iterate_json_lines

_BATCH = 1000  # lines per call of the tokenizer
_JOINED = re.compile(r" @([-,.])@ ")
_UNKNOWN = re.compile(r"(^| )<unk>")
_HEADING = re.compile(r"^(= )+(.*?)( =)+$")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|n't\b)")
_AFTER = re.compile(r"([(\[{$]) ")


class FileLines:
    """The lines of text files, plain or .gz, or the documents of .jsonl files, their `text`. They
    are read anew each time, and never held in memory together.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            if path.name.removesuffix(".gz").endswith(".jsonl"):
                for location, entry in iterate_json_lines(path):
                    yield field(entry, "text", str, location)
            else:
                yield from iterate_lines(path)


class ChangedLines:
    """Lines that are changed when they are read."""

    def __init__(self, lines: Iterable[str], change: Callable[[str], str]) -> None:
        self._lines, self._change = lines, change

    def __iter__(self) -> Iterator[str]:
        return map(self._change, self._lines)


@dataclass(frozen=True)
class Text:
    """The lines of one or several files; those of JSON lines files may hold line breaks.

    Attributes:
        lines: can be read several times.
        name: for messages and records.
    """

    lines: Iterable[str]
    name: str

    def __len__(self) -> int:
        return self._summary[0]

    @cached_property
    def _summary(self) -> tuple[int, str]:
        """Number and SHA-256 of the lines, from one reading."""
        count = 0

        def counted() -> Iterator[str]:
            nonlocal count
            for line in self.lines:
                count += 1
                yield line

        sha256 = digest(counted())
        return count, sha256

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about the data."""
        lines, sha256 = self._summary
        return {"from": self.name, "lines": lines, "sha256": sha256}


def read_text(paths: Sequence[Path]) -> Text:
    """The text of files, plain or .gz; a .jsonl file holds one document per line, as its `text`.

    They are read once here, so that what is wrong with them is known before anything else is done.
    """
    text = Text(FileLines(paths), " ".join(map(str, paths)))
    text.fingerprint()
    return text


def from_wikitext(line: str, unknown: str) -> str:
    """Turn a line of a WikiText token file back into normal text: without its markers of headings
    and split numbers, and without spaces around punctuation.

    Args:
        line: the line.
        unknown: stands for a word outside of WikiText's vocabulary; "" leaves such words out.
    """
    line = _HEADING.sub(r"\2", line.strip())
    line = _JOINED.sub(r"\1", line)
    line = line.replace("<unk>", unknown) if unknown else _UNKNOWN.sub("", line).strip()
    return _AFTER.sub(r"\1", _BEFORE.sub(r"\1", line))


def tokens_of_lines(
    text: Text, tokenizer: PreTrainedTokenizerBase, *, ending: str = ""
) -> Iterator[np.ndarray]:
    """Yield the tokens of each line that is not blank, without special tokens.

    Args:
        text: the text.
        tokenizer: the model's.
        ending: appended to each line.
    """
    lines = (line + ending for line in text.lines if line.strip())
    while batch := list(itertools.islice(lines, _BATCH)):
        outputs = tokenizer(
            batch,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for row in outputs["input_ids"]:
            yield np.array(row, dtype=np.int64)


def pieces(lines: Iterable[np.ndarray], room: int, *, shared: int = 0) -> Iterator[np.ndarray]:
    """Concatenate the tokens of lines and cut them into pieces of `room` tokens; the last may be
    shorter.

    Args:
        lines: the tokens of each line.
        room: number of tokens that are new in each piece.
        shared: number of tokens that a piece repeats from the end of the one before. A last piece
            without anything new is left out.
    """
    waiting: list[np.ndarray] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size < room + shared:
            continue
        tokens = np.concatenate(waiting)
        first = 0
        while size - first >= room + shared:
            yield tokens[first : first + room + shared]
            first += room
        waiting, size = [tokens[first:]], size - first
    if size > shared:
        yield np.concatenate(waiting)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    return whole[:first], whole[first + len(inner) :]


def too_little(text: Text, least: int, lines: Iterable[np.ndarray]) -> DataError:
    """The error about a text with fewer tokens than a task needs; `lines` are its tokens."""
    found = sum(map(len, lines))
    return DataError(f"{text.name} must hold at least {least} tokens of text, but holds {found}.")
