"""A small masked language model with random weights and a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

from ..files import new_folder

PAD, CLS, SEP, UNKNOWN, MASK = SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


@dataclass(frozen=True)
class FreshModel:
    """Sizes of a ModernBERT, whose layers all attend to the whole input.

    A BERT of this size, which normalises after each layer, learns no more than the frequencies of
    tokens within hundreds of updates; a ModernBERT, which normalises before them, does.

    Attributes:
        vocabulary: number of tokens (byte-level BPE).
        layers: number of blocks.
        width: size of the hidden states.
        heads: number of heads.
        positions: number of positions, as noted in its config.
        seed: seed of the weights.
    """

    vocabulary: int = 2000
    layers: int = 4
    width: int = 128
    heads: int = 4
    positions: int = 512
    seed: int = 0

    def write(self, folder: Path, lines: Iterable[str]) -> None:
        """Write model and tokenizer in the format of Hugging Face.

        Args:
            folder: a new folder.
            lines: text to learn the vocabulary from.
        """
        tokenizer = learn_tokenizer(lines, self.vocabulary)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = ModernBertForMaskedLM(self._config(tokenizer))
        with new_folder(folder) as temporary:
            tokenizer.save_pretrained(temporary)
            model.save_pretrained(temporary)

    def _config(self, tokenizer: PreTrainedTokenizerFast) -> ModernBertConfig:
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        return ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=2 * self.width,
            max_position_embeddings=self.positions,
            layer_types=["full_attention"] * self.layers,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=first,
            eos_token_id=last,
            cls_token_id=first,
            sep_token_id=last,
        )


def learn_tokenizer(lines: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of a given size."""
    inner = Tokenizer(models.BPE(unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        special_tokens=[(CLS, SPECIAL.index(CLS)), (SEP, SPECIAL.index(SEP))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        cls_token=CLS,
        sep_token=SEP,
        unk_token=UNKNOWN,
        mask_token=MASK,
    )
