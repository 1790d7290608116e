"""Cost of a baked attachment at inference: BERT-base size, batch 8 × 256, in one process.

    python benchmarks/baked.py [--pairs 40] [--threads 2] [--out benchmarks/results/baked.json]
    python benchmarks/baked.py --model FOLDER [--batch 2] …   # a real model of one stack

Each round times, in random order, the untouched model, the same model with a baked attachment
(random nonzero encodings at q, k and v of every block), and the untouched model again. The output
is the median ratio with a bootstrap interval, the same for untouched against untouched, and how
long `attach` and `bake` took.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, BertConfig, BertModel

import floater
from turns import parse, report, take_turns, twin

SIZES = {"pairs": 40, "threads": 2, "batch": 8, "length": 256, "layers": 12, "width": 768}


class Variant:
    """A model that answers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor) -> float:
        """Return the seconds of one forward pass."""
        begun = time.perf_counter()
        self._model(input_ids=ids)
        return time.perf_counter() - begun


def _model(arguments: argparse.Namespace) -> Any:
    """The untouched model."""
    if arguments.model is not None:
        return AutoModel.from_pretrained(arguments.model, dtype=torch.float32).eval()
    config = BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.width,
        num_attention_heads=math.gcd(12, arguments.width),
        intermediate_size=4 * arguments.width,
    )
    return BertModel(config).eval()


def main() -> None:
    arguments = parse("baked", __doc__, SIZES, model="folder of a model, instead of a random BERT")
    plain = _model(arguments)
    attached = twin(plain)
    begun = time.perf_counter()
    made = floater.attach(
        attached, floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.1)
    )
    attach_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    made.bake(arguments.length)
    bake_seconds = time.perf_counter() - begun
    largest = min(20_000, plain.config.vocab_size)
    ids = torch.randint(1000, largest, (arguments.batch, arguments.length))
    variants = {
        "plain": Variant(plain),
        "baked": Variant(attached),
        "plain again": Variant(twin(plain)),
    }
    times = take_turns(arguments.pairs, variants, lambda: ids)
    report(
        arguments,
        times,
        "baked attachment",
        attach_seconds=attach_seconds,
        bake_seconds=bake_seconds,
    )
    print(f"attach took {attach_seconds:.2f} s, bake({arguments.length}) {bake_seconds:.2f} s.")


if __name__ == "__main__":
    main()
