"""What is read and checked before a translation run starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from ...encoders import LearnedConfig
from ...errors import DataError, RunError
from ...recipes import read
from ...training.records import CONFIG, RunFolder
from ...training.start import on_cpu
from . import corpus, vocabulary
from .batches import Examples
from .config import TranslationConfig, VocabularyConfig
from .corpus import Pairs
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Prepared:
    """Everything that is read and checked before training starts."""

    vocabulary: Vocabulary
    train: Examples
    valid: Pairs
    test: Pairs | None
    facts: dict[str, Any]


def prepare(config: TranslationConfig, folder: RunFolder) -> Prepared:
    """Read and check the data, learn or copy the vocabulary, encode and filter."""
    data = config.data
    train, valid, test = (corpus.load(data, part) for part in ("train", "valid", "test"))
    assert train is not None
    assert valid is not None
    if data.max_pairs is not None:
        train = Pairs(train.source[: data.max_pairs], train.target[: data.max_pairs], train.name)
    if folder.vocabulary.exists():
        words = vocabulary.load(folder.vocabulary)
    elif config.init_from is not None:
        words = vocabulary.load(RunFolder.existing(config.init_from).vocabulary)
    else:
        words = _learned_once([*train.source, *train.target], config.vocabulary)
    source, target = words.encode(train.source), words.encode(train.target)
    kept = corpus.usable(data, source, target)
    examples = Examples([source[i] for i in kept], [target[i] for i in kept])
    _check_lengths(config, int(examples.lengths().max()))
    facts = {
        "data": {
            name: part.fingerprint()
            for name, part in (("train", train), ("valid", valid), ("test", test))
            if part is not None
        },
        "training_pairs": len(examples),
        "longest": int(examples.lengths().max()),
        "vocabulary": len(words),
    }
    return Prepared(words, examples, valid, test, facts)


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


def resolved(config: TranslationConfig) -> TranslationConfig:
    """The config with what a warm start takes over from its base written in; sizes that differ from
    it are refused.
    """
    if config.init_from is None:
        return config
    base, folder = settings(config.init_from)
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


def same_data(folder: RunFolder, prepared: Prepared) -> None:
    """Refuse to go on with a run whose files have changed since it was started."""
    for part, before in folder.facts().get("data", {}).items():
        now = prepared.facts["data"].get(part, {})
        for side in ("source_sha256", "target_sha256"):
            if before.get(side) != now.get(side):
                raise RunError(
                    f"{folder.path} was started with other {part} data ({before.get('from')}): its "
                    f"{side.split('_')[0]} side has changed since; bring the old files back, or "
                    "choose another --out."
                )


def _learned_once(lines: list[str], config: VocabularyConfig) -> Vocabulary:
    """A vocabulary that one process learns and all share."""
    state = PartialState(cpu=on_cpu())
    texts = [vocabulary.learn(lines, config).text() if state.is_main_process else ""]
    if state.num_processes > 1:
        broadcast_object_list(texts)
    return vocabulary.from_text(texts[0])


def settings(path: Path) -> tuple[TranslationConfig, RunFolder]:
    """The config of a run, and its folder."""
    folder = RunFolder.existing(path)
    return TranslationConfig(**read(path / CONFIG)), folder
