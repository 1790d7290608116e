"""Write text that a causal language model generates, for configs/clm/stories15m.yaml.

    python tools/stories.py ../shared/models/stories15m-llama --out data/stories

The model samples documents from its start token until it ends one or reaches the longest length.
The output is train.jsonl and valid.jsonl with one document per line, as {"text": …}. The documents
depend on model, seed and settings only; those of valid.jsonl do not occur in train.jsonl.

At temperature 1 the model is the true distribution of its text, and no training can lower its loss
on average. At the default of 0.8 likely tokens are more likely than the model believes, so there is
something to learn.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from failing import fail
from floater.errors import FloaterError
from floater.files import write_text
from floater.tasks.understanding.models import load, load_tokenizer, locate

SEEDS = {"train": 0, "valid": 1}
"""The second number of the seed of each file."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model, with safetensors and tokenizer")
    parser.add_argument("--out", type=Path, default=Path("data/stories"), help="folder to write")
    parser.add_argument("--train", type=int, default=2000, help="documents to train on")
    parser.add_argument("--valid", type=int, default=200, help="held-out documents")
    parser.add_argument("--length", type=int, default=256, help="longest document, in tokens")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampling")
    parser.add_argument("--batch", type=int, default=64, help="documents sampled at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    for name, least in {"train": 1, "valid": 1, "length": 2, "batch": 1, "threads": 1}.items():
        if getattr(arguments, name) < least:
            fail(f"`--{name}` must be at least {least}, but is {getattr(arguments, name)}.")
    if not 0 < arguments.temperature < math.inf:
        fail(f"`--temperature` must be positive, but is {arguments.temperature}.")
    if not 0 <= arguments.seed < 2**31:
        fail(f"`--seed` must lie between 0 and 2³¹ - 1, but is {arguments.seed}.")
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()  # would break our own
    try:
        written = generate(arguments)
    except FloaterError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{arguments.out} cannot be written: {error.strerror}.")
    print(
        f"wrote {arguments.out}: {written['train']:,} documents to train on, {written['valid']:,} "
        "held out"
    )


def generate(arguments: argparse.Namespace) -> dict[str, int]:
    """Sample both files and write them; returns the number of documents of each."""
    where = locate(arguments.model)
    tokenizer = load_tokenizer(where, pads=False)
    model = load(AutoModelForCausalLM, where).eval()
    first = model.config.bos_token_id
    if first is None:
        fail(f"{arguments.model} must have a start token (bos_token_id), but has none.")
    longest = getattr(model.config, "max_position_embeddings", arguments.length)
    if arguments.length > longest:
        fail(f"`--length` must be at most the model's {longest}, but is {arguments.length}.")
    documents = {}
    for name, count in (("train", arguments.train), ("valid", arguments.valid)):
        torch.manual_seed(2 * arguments.seed + SEEDS[name])
        sizes = [min(arguments.batch, count - at) for at in range(0, count, arguments.batch)]
        rows = (
            row
            for size in track(sizes, f"sampling {name}", transient=True)
            for row in sample(model, first, size, arguments.length, arguments.temperature)
        )
        texts = (tokenizer.decode(row, skip_special_tokens=True) for row in rows)
        documents[name] = list(dict.fromkeys(text for text in map(str, texts) if text.strip()))
    known = set(documents["train"])
    documents["valid"] = [text for text in documents["valid"] if text not in known]
    for name, texts_of in documents.items():
        if not texts_of:
            fail(f"{arguments.model} must write text for {name}, but wrote none that is new.")
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts_of)
        write_text(arguments.out / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
    return {name: len(texts_of) for name, texts_of in documents.items()}


def sample(
    model: Any, first: int, count: int, length: int, temperature: float
) -> Iterator[list[int]]:
    """Sample documents; a document ends before a token that starts or ends one.

    Args:
        model: the language model.
        first: the token that every document starts with.
        count: number of documents.
        length: tokens per document, with the first one.
        temperature: the logits are divided by it.

    Yields:
        The tokens of each document, without the first one.
    """
    ends = {first}
    if isinstance(last := model.config.eos_token_id, int):
        ends.add(last)
    elif last:
        ends.update(last)
    start = torch.full((count, 1), first)
    with torch.inference_mode():
        rows = model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=length - 1,
            eos_token_id=sorted(ends),
            pad_token_id=first,
        )
    for row in rows[:, 1:].tolist():
        yield row[: next((at for at, token in enumerate(row) if token in ends), len(row))]


if __name__ == "__main__":
    main()
