"""Text from files, and its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...errors import DataError
from ...files import digest, read_lines
from ..schema import field, read_json_lines

_BATCH = 1000  # lines per call of the tokenizer
_JOINED = re.compile(r" @([-,.])@ ")
_UNKNOWN = re.compile(r"(^| )<unk>")
_HEADING = re.compile(r"^(= )+(.*?)( =)+$")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|n't\b)")
_AFTER = re.compile(r"([(\[{$]) ")


@dataclass(frozen=True)
class Text:
    """The lines of one or several files; those of JSON lines files may hold line breaks."""

    lines: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.lines)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run folder records about the data."""
        return {"from": self.name, "lines": len(self), "sha256": digest(self.lines)}


def read_text(paths: Sequence[Path]) -> Text:
    """Read text files, plain or .gz; a .jsonl file holds one document per line, as its `text`."""
    lines = [line for path in paths for line in _lines(path)]
    return Text(lines, " ".join(map(str, paths)))


def _lines(path: Path) -> list[str]:
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        return read_lines(path)
    return [field(entry, "text", str, location) for location, entry in read_json_lines(path)]


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
) -> list[np.ndarray]:
    """The tokens of each line that is not blank, without special tokens.

    Args:
        text: the text.
        tokenizer: the model's.
        ending: appended to each line.
    """
    lines = [line + ending for line in text.lines if line.strip()]
    encoded: list[np.ndarray] = []
    for first in range(0, len(lines), _BATCH):
        outputs = tokenizer(
            lines[first : first + _BATCH],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        encoded += [np.array(row, dtype=np.int64) for row in outputs["input_ids"]]
    return encoded


def pieces(tokens: np.ndarray, room: int) -> Iterator[np.ndarray]:
    """Cut tokens into pieces of `room` tokens; the last may be shorter."""
    for first in range(0, len(tokens), room):
        yield tokens[first : first + room]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    return whole[:first], whole[first + len(inner) :]


def too_little(text: Text, least: int, found: int) -> DataError:
    """The error about a text with fewer tokens than a task needs."""
    return DataError(f"{text.name} must hold at least {least} tokens of text, but holds {found}.")
