"""Folders of models that read sound: what they hold beside a model."""

from __future__ import annotations

import math
from typing import Any

from transformers import AutoFeatureExtractor, WhisperFeatureExtractor
from transformers.utils.hub import has_file

from ..errors import ArgumentError, ConfigError
from ..files import reading
from ..tasks.understanding.models import load_tokenizer

_EXTRACTORS = ("preprocessor_config.json", "processor_config.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


class SoundFiles:
    """The feature extractor, for longer inputs, and the tokenizer of a model, if it has them.

    Args:
        where: folder or hub name of the model.
        length: positions of the new inputs.
        frames: frames per position.
    """

    def __init__(self, where: str, length: int, frames: int) -> None:
        self._extractor = self._tokenizer = None
        if _has_any(where, _EXTRACTORS):
            self._extractor = _longer_extractor(where, length, frames)
        if _has_any(where, _TOKENIZERS):
            self._tokenizer = load_tokenizer(where, pads=False)

    def save_pretrained(self, folder: str) -> None:
        """Write both to a folder."""
        for part in (self._extractor, self._tokenizer):
            if part is not None:
                part.save_pretrained(folder)


def _has_any(where: str, names: tuple[str, ...]) -> bool:
    return any(has_file(where, name) for name in names)


def _longer_extractor(where: str, length: int, frames: int) -> Any:
    """The feature extractor of a model, for inputs of another length."""
    with reading(
        f"The feature extractor of {where}", ConfigError, "check the files of the folder."
    ):
        extractor: Any = AutoFeatureExtractor.from_pretrained(where, trust_remote_code=False)
    if not isinstance(extractor, WhisperFeatureExtractor):
        raise ConfigError(
            f"The feature extractor of {where} must be a WhisperFeatureExtractor, but is a "
            f"{type(extractor).__name__}."
        )
    samples, rate = frames * extractor.hop_length, extractor.sampling_rate
    step = rate // math.gcd(rate, samples)
    if length % step:
        raise ArgumentError(
            f"`--length` must be a whole number of seconds, a multiple of {step:,} positions, for "
            f"the feature extractor of {where}, but is {length:,}; choose "
            f"{step * math.ceil(length / step):,}."
        )
    extractor.chunk_length = length * samples // rate
    extractor.n_samples = extractor.chunk_length * extractor.sampling_rate
    extractor.nb_max_frames = extractor.n_samples // extractor.hop_length
    return extractor
