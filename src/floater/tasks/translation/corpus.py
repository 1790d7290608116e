"""Pairs of sentences from text files, TSV files, the hub or the embedded corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import DataError
from ...files import digest, read_lines
from ..tsv import from_hub, read_tsv
from .config import SplitFiles, TranslationDataConfig, TranslationHub, file_list
from .embedded import generate

SplitName = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Pairs:
    """Aligned sentences."""

    source: list[str]
    target: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.source)

    def fingerprint(self) -> dict[str, str | int]:
        """What a run records about its data."""
        return {
            "from": self.name,
            "pairs": len(self),
            "source_sha256": digest(self.source),
            "target_sha256": digest(self.target),
        }

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(zip(self.source, self.target, strict=True))


def load(config: TranslationDataConfig, split: SplitName) -> Pairs | None:
    """Load a split of the data; None if the config does not name it."""
    if config.hub is not None:
        return _from_hub(config.hub, getattr(config.hub, split), config.source, config.target)
    if config.embedded is not None:
        embedded = config.embedded
        name = f"embedded {', '.join(embedded.items)}, seed {embedded.seed}, {split}"
        return Pairs(*generate(embedded, split, config.source, config.target), name)
    if config.hold_out is None or split == "test":
        return _from_files(config, getattr(config, split))
    pairs = _from_files(config, config.train)
    assert pairs is not None
    if len(pairs) <= config.hold_out:
        raise DataError(
            f"{pairs.name} must have more than the {config.hold_out:,} pairs of `hold_out`, but "
            f"has {len(pairs):,}."
        )
    first = split == "train"
    part = slice(-config.hold_out) if first else slice(-config.hold_out, None)
    name = f"{pairs.name}, {'all but ' if first else ''}the last {config.hold_out} pairs"
    return Pairs(pairs.source[part], pairs.target[part], name)


def _from_files(config: TranslationDataConfig, files: SplitFiles | None) -> Pairs | None:
    if files is None:
        return None
    if files.tsv is not None:
        columns = files.source_column or config.source, files.target_column or config.target
        return _joined([_from_tsv(path, *columns) for path in file_list(files.tsv)])
    two = zip(file_list(files.source), file_list(files.target), strict=True)
    return _joined([_from_text(source, target) for source, target in two])


def _from_text(source: Path, target: Path) -> Pairs:
    lines, others = read_lines(source), read_lines(target)
    if len(lines) != len(others):
        raise DataError(
            f"{source} and {target} must have the same number of lines, but have {len(lines):,} "
            f"and {len(others):,}."
        )
    return Pairs(lines, others, f"{source} | {target}")


def _joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(
        [line for part in parts for line in part.source],
        [line for part in parts for line in part.target],
        " + ".join(part.name for part in parts),
    )


def _from_tsv(path: Path, source: str, target: str) -> Pairs:
    table = read_tsv(path)
    return Pairs(table.column(source), table.column(target), str(path))


def _from_hub(hub: TranslationHub, split: str, source: str, target: str) -> Pairs:
    rows = from_hub(hub.name, hub.config, split)["translation"]
    missing = [language for language in (source, target) if rows and language not in rows[0]]
    if missing:
        raise DataError(
            f"{hub.name} ({hub.config}) must have the language {missing[0]!r}, but has "
            f"{', '.join(rows[0])}."
        )
    return Pairs(
        [row[source] for row in rows],
        [row[target] for row in rows],
        f"{hub.name} {hub.config} {split}",
    )


def usable(
    config: TranslationDataConfig, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> list[int]:
    """Numbers of the training pairs that are not empty, not too long and of similar lengths.

    Lengths count the end token.
    """
    numbers = []
    widest = config.max_source_tokens or config.max_tokens
    for number, (one, other) in enumerate(zip(source, target, strict=True)):
        short, long = sorted((len(one), len(other)))
        if short <= 1 or long > config.max_tokens or not config.min_tokens <= len(one) <= widest:
            continue
        if config.max_ratio is not None and long > config.max_ratio * short:
            continue
        numbers.append(number)
    if not numbers:
        raise DataError(
            f"No training pair is left of {len(source):,} after the filters (min_tokens "
            f"{config.min_tokens}, max_tokens {config.max_tokens}, max_source_tokens "
            f"{config.max_source_tokens}, max_ratio {config.max_ratio}); loosen them in `data`."
        )
    return numbers
