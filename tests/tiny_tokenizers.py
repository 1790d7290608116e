"""Tokenizers like those of BERT (uncased, with token types) and RoBERTa (byte-level, without token
types), trained on a few lines of text.
"""

from __future__ import annotations

from functools import cache

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

KINDS = ("bert", "roberta")
TEXT = [
    (
        "The Normans were the people who in the 10th and 11th centuries gave their name to "
        "Normandy, a region in France."
    ),
    (
        "What did Rollo swear? Rollo, their leader, agreed to swear fealty to King Charles III of "
        "West Francia in 911."
    ),
    (
        "Zoë's café in Málaga opened in 1999; who owns the café today? She answered nothing at all,"
        " and left the room."
    ),
]
_SPECIAL = {
    "bert": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
    "roberta": ("<pad>", "<s>", "</s>", "<unk>"),
}


@cache
def tiny(kind: str) -> PreTrainedTokenizerFast:
    pad, cls, sep, unknown = _SPECIAL[kind]
    special = list(_SPECIAL[kind])
    trainer: trainers.Trainer
    if kind == "bert":
        inner = Tokenizer(models.WordPiece(unk_token=unknown))
        inner.normalizer = normalizers.BertNormalizer(lowercase=True)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=150, special_tokens=special, show_progress=False
        )
        inner.train_from_iterator(TEXT, trainer)
        inner.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(cls, 1), (sep, 2)],
        )
    else:
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        inner.train_from_iterator(TEXT, trainer)
        inner.post_processor = processors.RobertaProcessing(
            (sep, 2), (cls, 1), trim_offsets=True, add_prefix_space=False
        )
    names = (
        ["input_ids", "token_type_ids", "attention_mask"]
        if kind == "bert"
        else ["input_ids", "attention_mask"]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=pad,
        cls_token=cls,
        sep_token=sep,
        unk_token=unknown,
        model_input_names=names,
    )
