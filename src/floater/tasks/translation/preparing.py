"""The data of a translation run: read, checked and encoded before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...encoders import LearnedConfig
from ...errors import DataError, RunError
from ...runs.folder import RunFolder
from ...training.process import on_cpu
from . import corpus, vocabulary
from .batches import Examples
from .config import TranslationConfig, VocabularyConfig
from .corpus import Pairs
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class TranslationData:
    """Everything that is read and checked before training starts.

    Attributes:
        vocabulary: of both languages.
        train: encoded training pairs.
        valid: validation pairs.
        test: test pairs; None if the config names none.
        fingerprints: of the splits, as they were read.
    """

    vocabulary: Vocabulary
    train: Examples
    valid: Pairs
    test: Pairs | None
    fingerprints: Mapping[str, Mapping[str, Any]]


def prepare(config: TranslationConfig, folder: RunFolder) -> TranslationData:
    """Read and check the data, learn or copy the vocabulary, encode and filter."""
    data = config.data
    train = _training_pairs(config)
    valid, test = corpus.load(data, "valid"), corpus.load(data, "test")
    assert valid is not None
    splits = {"train": train, "valid": valid, "test": test}
    words = _vocabulary(config, folder, lambda: train)
    source, target = words.encode(train.source), words.encode(train.target)
    usable = corpus.usable(data, source, target)
    examples = Examples([source[i] for i in usable], [target[i] for i in usable])
    _check_lengths(config, int(examples.lengths().max()))
    return TranslationData(
        words,
        examples,
        valid,
        long_enough(test, words, data.min_test_tokens),
        {name: pairs.fingerprint() for name, pairs in splits.items() if pairs is not None},
    )


def _training_pairs(config: TranslationConfig) -> Pairs:
    """The pairs from which the vocabulary is learned."""
    train, most = corpus.load(config.data, "train"), config.data.max_pairs
    assert train is not None
    return train if most is None else Pairs(train.source[:most], train.target[:most], train.name)


def _vocabulary(
    config: TranslationConfig, folder: RunFolder, training_pairs: Callable[[], Pairs]
) -> Vocabulary:
    if folder.vocabulary.exists():
        return vocabulary.load(folder.vocabulary)
    if config.init_from is not None:
        return vocabulary.load(RunFolder.existing(config.init_from).vocabulary)
    train = training_pairs()
    return _learned_once([*train.source, *train.target], config.vocabulary)


def vocabulary_of(folder: RunFolder, config: TranslationConfig) -> Vocabulary:
    """The vocabulary of a run, learned again from its data if it was deleted."""
    return _vocabulary(config, folder, lambda: _training_pairs(config))


def long_enough(test: Pairs | None, words: Vocabulary, min_tokens: int) -> Pairs | None:
    """The test pairs whose source has at least `min_tokens` tokens."""
    if test is None or not min_tokens:
        return test
    lengths = map(len, words.encode(test.source))
    kept = [pair for pair, length in zip(test, lengths, strict=True) if length >= min_tokens]
    if not kept:
        raise DataError(
            f"No test source has {min_tokens} tokens or more; lower `min_test_tokens` of `data`."
        )
    sources, targets = ([pair[side] for pair in kept] for side in (0, 1))
    return Pairs(sources, targets, f"{test.name}, {min_tokens} tokens and more")


def _check_lengths(config: TranslationConfig, longest: int) -> None:
    if longest > config.training.batch_tokens:
        raise DataError(
            f"`batch_tokens` is {config.training.batch_tokens}, but the longest training sentence "
            f"has {longest} tokens; raise it, or lower `max_tokens` of `data`."
        )
    encoder = config.positions.encoder
    if (
        isinstance(encoder, LearnedConfig)
        and encoder.beyond == "error"
        and longest > encoder.max_length
    ):
        raise DataError(
            f"The learned encoder has {encoder.max_length} positions, but the longest training "
            f"sentence has {longest} tokens; raise `max_length`, set `beyond: clamp`, or lower "
            "`max_tokens` of `data`."
        )


def resolve(config: TranslationConfig) -> TranslationConfig:
    """The config with what a warm start takes over from its base.

    Raises:
        RunError: the sizes of the two models differ.
    """
    if config.init_from is None:
        return config
    folder = RunFolder.existing(config.init_from)
    base = TranslationConfig(**folder.settings())
    ours, theirs = config.model.size(), base.model.size()
    for key in ("layers", "dim", "feed_forward", "heads"):
        if ours[key] != theirs[key]:
            raise RunError(
                f"{config.init_from} was trained with model.{key} = {theirs[key]}, but the config "
                f"says {ours[key]}; a warm start needs the same model."
            )
    entries = len(vocabulary.load(folder.vocabulary))
    if "vocabulary" in config.model_fields_set and config.vocabulary.size != entries:
        raise RunError(
            f"{config.init_from} has a vocabulary of {entries} entries, but the config says "
            f"{config.vocabulary.size}; a warm start takes over the vocabulary: set "
            f"vocabulary.size to {entries}, or leave it out."
        )
    return config.model_copy(update={"vocabulary": base.vocabulary})


def _learned_once(lines: list[str], config: VocabularyConfig) -> Vocabulary:
    """Learn a vocabulary in one process and share it with all."""
    state = PartialState(cpu=on_cpu())
    texts = [vocabulary.learn(lines, config).text() if state.is_main_process else ""]
    if state.num_processes > 1:
        broadcast_object_list(texts)
    return vocabulary.from_text(texts[0])
