"""Write a small ModernBERT with random weights and a vocabulary of its own, to train a masked
language model from scratch.

    python tools/fresh_modernbert.py TEXT… --out data/modernbert-small [--wikitext]

All its layers attend to the whole input. A BERT of this size, which normalises after each layer,
does not learn more than the frequencies of tokens within some hundred updates; this one does.

The text files, plain or .gz, are those that it will be trained on. With `--wikitext` WikiText's
tokens are turned back into normal text, as `data.wikitext` of a config does. The folder holds the
tokenizer (byte-level BPE) and the model (safetensors) in the format of Hugging Face.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

from floater.errors import FloaterError
from floater.tasks.language_model.text import from_wikitext, read_text

PAD, CLS, SEP, UNKNOWN, MASK = SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
SIZES = {"vocabulary": 2000, "layers": 4, "width": 128, "heads": 4, "positions": 512}


def learn_tokenizer(lines: Sequence[str], size: int) -> PreTrainedTokenizerFast:
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
        single=f"{CLS} $A {SEP}", special_tokens=[(CLS, 1), (SEP, 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        cls_token=CLS,
        sep_token=SEP,
        unk_token=UNKNOWN,
        mask_token=MASK,
    )


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, nargs="+", help="text files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, new or empty")
    parser.add_argument("--wikitext", action="store_true", help="the files are WikiText's")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(given)
    for name, least in {**dict.fromkeys(SIZES, 1), "vocabulary": 300}.items():
        if getattr(arguments, name) < least:
            fail(f"--{name} must be at least {least}, but is {getattr(arguments, name)}.")
    if arguments.width % arguments.heads:
        fail(f"--width must be a multiple of --heads, {arguments.heads}, but is {arguments.width}.")
    if arguments.out.exists() and (arguments.out.is_file() or any(arguments.out.iterdir())):
        fail(f"--out must be a new or empty folder, but {arguments.out} is not.")
    try:
        lines = read_text(arguments.text).lines
    except FloaterError as error:
        fail(str(error))
    if arguments.wikitext:
        lines = [from_wikitext(line, UNKNOWN) for line in lines]
    tokenizer = learn_tokenizer(lines, arguments.vocabulary)
    torch.manual_seed(arguments.seed)
    model = ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=arguments.width,
            num_hidden_layers=arguments.layers,
            num_attention_heads=arguments.heads,
            intermediate_size=2 * arguments.width,
            max_position_embeddings=arguments.positions,
            global_attn_every_n_layers=1,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
        )
    )
    tokenizer.save_pretrained(arguments.out)
    model.save_pretrained(arguments.out)
    print(f"{arguments.out}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


def fail(message: str) -> NoReturn:
    """Print one line and end with exit code 2."""
    print(f"fresh_modernbert.py: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
