"""Splits of several files, and training pairs held out for validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floater.errors import ConfigError, DataError
from floater.tasks.translation import corpus
from floater.tasks.translation.config import TranslationDataConfig


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def train(tmp_path: Path) -> dict[str, list[Path]]:
    return {
        "source": [write(tmp_path, "1.en", "one", "two"), write(tmp_path, "2.en", "three")],
        "target": [write(tmp_path, "1.de", "eins", "zwei"), write(tmp_path, "2.de", "drei")],
    }


def config(**settings: Any) -> TranslationDataConfig:
    languages: dict[str, Any] = {"source": "en", "target": "de"}
    return TranslationDataConfig(**languages, **settings)


def test_several_text_files_are_concatenated(train: dict[str, list[Path]]) -> None:
    pairs = corpus.load(config(train=train, hold_out=1, test=train), "test")
    assert pairs is not None
    assert list(pairs) == [("one", "eins"), ("two", "zwei"), ("three", "drei")]
    assert pairs.name.count(" + ") == 1


def test_the_last_training_pairs_can_be_held_out(train: dict[str, list[Path]]) -> None:
    data = config(train=train, hold_out=1)
    kept, held = corpus.load(data, "train"), corpus.load(data, "valid")
    assert kept is not None
    assert held is not None
    assert list(kept) == [("one", "eins"), ("two", "zwei")]
    assert list(held) == [("three", "drei")]
    assert "all but the last 1 pairs" in kept.name
    assert corpus.load(data, "test") is None


def test_no_more_pairs_than_there_are_can_be_held_out(train: dict[str, list[Path]]) -> None:
    with pytest.raises(DataError, match="must have more than the 3 pairs of `hold_out`, but has 3"):
        corpus.load(config(train=train, hold_out=3), "train")


def test_contradictory_settings_are_named(train: dict[str, list[Path]]) -> None:
    with pytest.raises(ConfigError, match="and `hold_out`"):
        config(train=train)
    with pytest.raises(ConfigError, match="and `hold_out`"):
        config(train=train, valid=train, hold_out=1)
    with pytest.raises(ConfigError, match="`hold_out` needs `train`"):
        config(hub={}, hold_out=1)
    with pytest.raises(ConfigError, match="must name equally many files, but name 2 and 1"):
        config(train={**train, "target": train["target"][:1]}, hold_out=1)
