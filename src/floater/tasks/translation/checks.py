"""Checks of a translation run before anything is read: its files exist, memory and disk suffice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...encoders import LearnedConfig
from ...errors import DataError
from ...room import check_disk, check_folder, check_memory
from ...training.process import on_cpu
from .config import TranslationConfig, TranslationDataConfig, file_list

_COPIES = 4  # of the weights in memory: themselves, their gradient, and Adam's two moments
_BYTES = 10  # of text per token, at most
_ITEM = 16  # bytes of an item of an embedded line, at least


def check_inputs(config: TranslationConfig, path: Path) -> None:
    """Raise an error if a file is missing, the run folder cannot be written, or disk or memory are
    too small.

    Args:
        config: the settings.
        path: the run folder, which need not exist yet.
    """
    for file in files(config.data):
        if file.is_dir() or not file.exists():
            what = "is a folder" if file.is_dir() else "there is none"
            raise DataError(
                f"{file} must be a text file, but {what}; check the path, or FLOATER_DATA."
            )
        if file.is_file():  # a pipe could be opened only once
            with file.open("rb"):
                pass
    check_folder(path)
    weights = parameters(config)
    if on_cpu():
        scores = min(config.training.batch_tokens, _tokens(config)) * _entries(config)
        needed = 4 * (_COPIES * weights + scores) + _ITEM * _items(config)
        check_memory(
            needed,
            "This run",
            "make `model`, `vocabulary.size`, `training.batch_tokens` or `data` smaller",
        )
    check_disk(
        path,
        4
        * (
            3 * min(config.training.keep, 1 + config.training.updates // config.training.save_every)
            + 2
        )
        * weights,
    )


def files(data: TranslationDataConfig) -> Iterator[Path]:
    """The files that a config names."""
    for part in (data.train, data.valid, data.test):
        if part is None:
            continue
        for named in (part.tsv, part.source, part.target):
            yield from file_list(named)


def parameters(config: TranslationConfig) -> int:
    """A lower bound of the number of weights."""
    size = config.model.size()
    layers, dim, wide = int(size["layers"]), int(size["dim"]), int(size["feed_forward"])
    encoder = config.positions.encoder
    table = encoder.max_length * dim if isinstance(encoder, LearnedConfig) else 0
    return layers * (12 * dim * dim + 4 * dim * wide) + _entries(config) * dim + table


def _entries(config: TranslationConfig) -> int:
    """A lower bound of the size of the vocabulary, which the text limits."""
    return min(config.vocabulary.size, 4000 if config.data.embedded is None else 400)


def _items(config: TranslationConfig) -> int:
    """A lower bound of the items of the embedded corpus."""
    embedded = config.data.embedded
    return (
        0
        if embedded is None
        else sum(
            part.pairs * (part.shortest + part.longest) // 2
            for part in (embedded.train, embedded.valid, embedded.test)
        )
    )


def _tokens(config: TranslationConfig) -> int:
    """A lower bound of the tokens of the training split."""
    if config.data.train is None:
        return _items(config)
    return (
        sum(
            file.stat().st_size
            for file in files(config.data.model_copy(update={"valid": None, "test": None}))
        )
        // _BYTES
    )
