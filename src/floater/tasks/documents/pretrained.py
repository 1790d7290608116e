"""Pretrained sentence encoders, and the vectors of frozen ones: computed once, and kept."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from ...errors import ConfigError, RunError
from ...files import reading, write_bytes
from ..understanding.models import load, load_tokenizer, locate
from .config import SentenceConfig
from .text import Documents
from .tokens import Words, padded, plain, words_of

_TOKENS = 4096  # of a batch
_KEY = "vectors"
_recent: dict[str, NDArray[np.float32]] = {}  # vectors of the file that was used last


class Pretrained:
    """A pretrained sentence encoder.

    Args:
        config: with its name.

    Attributes:
        model: in eval mode.
        tokenizer: without truncation and padding.
        sha256: of weights and tokenizer.
    """

    def __init__(self, config: SentenceConfig) -> None:
        assert config.name is not None
        where = locate(config.name)
        tokenizer: Any = load_tokenizer(where)
        self.tokenizer: Tokenizer = plain(tokenizer.backend_tokenizer)
        self.model: PreTrainedModel = without_pooler(load(AutoModel, where).eval())
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and config.max_words > limit:
            raise ConfigError(
                f"`sentences.max_words` must be at most {limit}, the longest input of "
                f"{config.name}, but is {config.max_words}."
            )
        self._limit = config.max_words
        self._words: dict[str, Words] = {}
        sha256 = hashlib.sha256(self.tokenizer.to_str().encode())
        for name, value in sorted(self.model.state_dict().items()):
            sha256.update(name.encode())
            sha256.update(value.contiguous().numpy().tobytes())
        self.sha256 = sha256.hexdigest()

    @property
    def width(self) -> int:
        """Of a sentence vector."""
        return int(self.model.config.hidden_size)

    def words(self, documents: Documents) -> Words:
        """The words of all sentences of a file; encoded once."""
        if documents.sha256 not in self._words:
            flat = [sentence for own in documents.sentences for sentence in own]
            self._words[documents.sha256] = words_of(self.tokenizer, flat, self._limit)
        return self._words[documents.sha256]

    def vectors(
        self, documents: Documents, words: Words, cache: Path | None
    ) -> NDArray[np.float32]:
        """The vectors [sentences, width] of all sentences of a file.

        Args:
            documents: of the file.
            words: of its sentences.
            cache: folder that keeps them.
        """
        parts = (self.sha256, documents.sha256, str(self._limit))
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        path = None if cache is None else cache / f"{key}.safetensors"
        kept = path is not None and path.is_file()
        if key not in _recent:
            vectors = (
                _read(path, (len(words.lengths), self.width))
                if path is not None and kept
                else self._computed(words)
            )
            _recent.clear()
            _recent[key] = vectors
        if path is not None and not kept:
            write_bytes(path, save({_KEY: _recent[key]}))
        return _recent[key]

    @torch.no_grad()
    def _computed(self, words: Words) -> NDArray[np.float32]:
        """Sentences of similar length share a batch."""
        counts = np.diff(words.offsets)
        order = np.argsort(-counts, kind="stable")
        vectors = np.empty((len(counts), self.width), dtype=np.float32)
        first = 0
        while first < len(order):
            size = max(1, _TOKENS // int(counts[order[first]]))
            rows = order[first : first + size]
            ids, mask = padded([words.of(int(row)) for row in rows])
            states = mean_state(self.model, torch.from_numpy(ids), torch.from_numpy(mask))
            vectors[rows] = states.numpy()
            first += size
        return vectors


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    advice = "remove it; it is computed again."
    with reading(path, RunError, advice):
        vectors: NDArray[np.float32] = load_file(path)[_KEY]
    if vectors.shape != shape or not np.isfinite(vectors).all():
        raise RunError(f"{path} must hold finite vectors {shape}, but does not; {advice}")
    return vectors


def without_pooler(model: Any) -> Any:
    """The model without the layer on its first token, which is not used."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def mean_state(model: Any, words: Tensor, mask: Tensor) -> Tensor:
    """The mean [sentences, width] of the outputs of a model over the words of each sentence."""
    states = model(input_ids=words, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(states)
    mean: Tensor = (states * weights).sum(1) / weights.sum(1)
    return mean
