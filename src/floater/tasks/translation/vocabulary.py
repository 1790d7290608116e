"""A joint BPE vocabulary over bytes, so that every text can be written and read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ...errors import ConfigError, RunError
from ...files import check_hashes, reading, record_hashes
from .config import VocabularyConfig

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN)


class Vocabulary:
    """Text → numbers that end with the end token, and back."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.pad, self.start, self.end = (SPECIAL.index(token) for token in (PAD, START, END))

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of each line, with the end token."""
        encoded = self.tokenizer.backend_tokenizer.encode_batch([line.strip() for line in lines])
        return [found.ids for found in encoded]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Text of each row of token numbers."""
        return [
            text.strip().replace("\n", " ")
            for text in self.tokenizer.batch_decode(
                [list(row) for row in rows], skip_special_tokens=True
            )
        ]

    def text(self) -> str:
        """Serialise it as text, for another process."""
        return self.tokenizer.backend_tokenizer.to_str()

    def save(self, folder: Path) -> None:
        """Save it as a Hugging Face tokenizer."""
        self.tokenizer.save_pretrained(folder)
        record_hashes(folder)


def learn(lines: Iterable[str], config: VocabularyConfig) -> Vocabulary:
    """Learn a vocabulary from text of both languages."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((line.strip() for line in lines), trainer)
    if bpe.get_vocab_size() < config.size:
        raise ConfigError(
            f"`size` of `vocabulary` is {config.size:,}, but the training data allows only "
            f"{bpe.get_vocab_size():,} entries (merges seen at least {config.min_frequency} "
            f"times); set it to {bpe.get_vocab_size()} or less."
        )
    bpe.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, SPECIAL.index(END))]
    )
    return from_text(bpe.to_str())


def from_text(text: str) -> Vocabulary:
    """The vocabulary that `Vocabulary.text` serialised."""
    return Vocabulary(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(text),
            pad_token=PAD,
            bos_token=START,
            eos_token=END,
            unk_token=UNKNOWN,
            clean_up_tokenization_spaces=False,
        )
    )


def load(folder: Path) -> Vocabulary:
    """Load what `Vocabulary.save` wrote."""
    advice = "restore the folder from a copy, or train again."
    if not (folder / "tokenizer.json").is_file():
        raise RunError(f"{folder} must hold a vocabulary (tokenizer.json), but does not; {advice}")
    check_hashes(folder, RunError, advice)
    with reading(f"{folder}, which must hold a vocabulary,", RunError, advice):
        return Vocabulary(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True))
