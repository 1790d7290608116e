"""Words of sentences as numbers: a vocabulary of the training set, or a pretrained tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

PADDING, UNKNOWN = "[PAD]", "[UNK]"
_BATCH = 2000  # sentences that are encoded at a time


def train_vocabulary(sentences: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer into lower-case words and marks, that knows the most frequent ones."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=[PADDING, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer without truncation and padding."""
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


@dataclass(frozen=True)
class Words:
    """The words of sentences.

    Attributes:
        ids: of all sentences one after the other, with special tokens.
        offsets: where each sentence begins, and the end [sentences + 1].
        lengths: tokens of each sentence before truncation, without special tokens; at least 1.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def of(self, sentence: int) -> NDArray[np.int32]:
        """The words of one sentence."""
        return self.ids[self.offsets[sentence] : self.offsets[sentence + 1]]


def words_of(tokenizer: Tokenizer, sentences: Sequence[str], limit: int) -> Words:
    """Encode sentences.

    Args:
        tokenizer: without truncation and padding.
        sentences: texts.
        limit: most tokens of a sentence, special ones included.
    """
    room = limit - tokenizer.num_special_tokens_to_add(False)
    ids: list[NDArray[np.int32]] = []
    lengths = np.ones(len(sentences), dtype=np.int64)
    for first in range(0, len(sentences), _BATCH):
        chunk = list(sentences[first : first + _BATCH])
        for number, encoding in enumerate(
            tokenizer.encode_batch(chunk, add_special_tokens=False), first
        ):
            if not len(encoding.ids):  # nothing but control characters
                encoding = tokenizer.encode("?", add_special_tokens=False)  # noqa: PLW2901
            lengths[number] = len(encoding.ids)
            encoding.truncate(room)
            whole = tokenizer.post_process(encoding, add_special_tokens=True)
            ids.append(np.array(whole.ids, dtype=np.int32))
    counts = [len(own) for own in ids]
    return Words(np.concatenate(ids), np.concatenate(([0], np.cumsum(counts))), lengths)


def padded(rows: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Words [rows, longest] and a mask of the same shape, 1 where there is a word."""
    longest = max((len(row) for row in rows), default=1)
    words = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros_like(words)
    for number, row in enumerate(rows):
        words[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return words, mask
