"""Cost of stretched times in training: Transformer-base, 768 tokens a side, up to 48 in a row.

    python benchmarks/jitter.py [--pairs 40] [--threads 2] [--out benchmarks/results/jitter.json]

Each round times, in one process and in random order, one training step (forward, backward, AdamW)
of a translation model with a flow at q, k and v of every attention, of the same model with
`TimeJitter(stretch=4)`, where every row has times of its own, and of a second model without it. All
variants of a round get the same batch; its length varies from round to round. The output is the
median ratio with a bootstrap interval, and the same for the model without jitter against itself.
`--flow rotating` has a flow that begins as a sinusoid in all three models. `--profile` prints
instead where a step with jitter spends its time, beside one without.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig

import floater
from floater.tasks.translation.model import MarianMTModel
from floater.training import parameter_groups
from step_models import PAD, STRETCH, translation_batch
from turns import machine, parse, report, take_turns

SIZES = {
    "pairs": 40,
    "threads": 2,
    "tokens": 768,
    "length": 48,
    "layers": 6,
    "width": 512,
    "vocabulary": 8000,
}
FLOWS = {
    "plain": floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.1, horizon=20.0),
    "rotating": floater.FlowConfig(
        pace="free", zero_init=False, initial_scale=0.5, horizon=20.0, rotating=True
    ),
}


class Variant:
    """A model and its optimiser."""

    def __init__(self, model: MarianMTModel, jitter: floater.TimeJitter | None) -> None:
        self._model = model.train()
        attached = floater.attachment(model)
        assert attached is not None
        attached.jitter = jitter
        groups = parameter_groups(model, lr=1e-5)
        self._optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.98), eps=1e-9)

    def __call__(self, batch: dict[str, Tensor]) -> float:
        """Return the seconds of one training step."""
        begun = time.perf_counter()
        labels = int(batch["labels"].ne(-100).sum())
        loss = self._model(**batch, num_items_in_batch=labels).loss
        assert loss is not None
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun


def build(arguments: argparse.Namespace) -> MarianMTModel:
    """Return the model of the original Transformer, with a flow in place of the sinusoid."""
    heads = math.gcd(8, arguments.width)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=arguments.vocabulary,
            d_model=arguments.width,
            encoder_layers=arguments.layers,
            decoder_layers=arguments.layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * arguments.width,
            decoder_ffn_dim=4 * arguments.width,
            activation_function="relu",
            pad_token_id=PAD,
            eos_token_id=2,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    )
    floater.attach(model, FLOWS[arguments.flow or "plain"], positions="replace")
    return model


def main() -> None:
    texts = {"profile": "rows of the profile to print", "flow": "plain (the default) or rotating"}
    arguments = parse("jitter", __doc__, SIZES, **texts)
    if arguments.flow not in (None, *FLOWS):
        print(
            f"jitter.py: --flow must be plain or rotating, but is {arguments.flow!r}",
            file=sys.stderr,
        )
        sys.exit(2)
    plain = build(arguments)
    stretched, again = copy.deepcopy(plain), copy.deepcopy(plain)
    variants = {
        "plain": Variant(plain, None),
        "stretched": Variant(stretched, floater.TimeJitter(stretch=STRETCH)),
        "plain again": Variant(again, None),
    }

    def draw() -> dict[str, Tensor]:
        return translation_batch(arguments.tokens, arguments.length, arguments.vocabulary)

    if arguments.profile is None:
        times = take_turns(arguments.pairs, variants, draw)
        report(arguments, times, "stretched times", benchmark="jitter", machine=machine())
        return
    shared = draw()
    for name in ("plain", "stretched"):
        variants[name](shared)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            variants[name](shared)
        table = profiler.key_averages().table(
            sort_by="self_cpu_time_total",
            row_limit=int(arguments.profile),
            max_name_column_width=50,
        )
        print(f"{name}\n{table}")


if __name__ == "__main__":
    main()
