"""Cost of frozen dynamics in fine-tuning: RoBERTa, 6 layers, 384 wide, batch 16 × 128.

    python benchmarks/frozen.py [--pairs 40] [--threads 2] [--out benchmarks/results/frozen.json]

Each round times, in one process and in random order, one training step (forward, backward, AdamW)
of the untouched model, of the same model with a frozen nonzero flow at q, k and v of every block,
and of a second untouched model. All variants of a round get the same batch; its length varies from
round to round. The output is the median ratio with a bootstrap interval, and the same for untouched
against untouched.
"""

from __future__ import annotations

import copy
import math
import random
import time

import torch
from torch import Tensor
from transformers import RobertaConfig, RobertaForSequenceClassification

import floater
from floater.training import freeze_flow, parameter_groups
from turns import parse, report, take_turns

SIZES = {"pairs": 40, "threads": 2, "batch": 16, "length": 128, "layers": 6, "width": 384}
PAD = 1


class Variant:
    """A model and its optimiser."""

    def __init__(self, model: RobertaForSequenceClassification) -> None:
        self._model = model.train()
        freeze_flow(model)
        groups = parameter_groups(model, lr=1e-5, weight_decay=0.1, required=False)
        self._optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.98), eps=1e-6)

    def __call__(self, batch: dict[str, Tensor]) -> float:
        """Return the seconds of one training step."""
        begun = time.perf_counter()
        self._model(**batch).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun


def main() -> None:
    arguments = parse("frozen", __doc__, SIZES)
    plain = RobertaForSequenceClassification(
        RobertaConfig(
            num_hidden_layers=arguments.layers,
            hidden_size=arguments.width,
            num_attention_heads=math.gcd(12, arguments.width),
            intermediate_size=4 * arguments.width,
            max_position_embeddings=arguments.length + 2,
        )
    )
    attached, again = copy.deepcopy(plain), copy.deepcopy(plain)
    floater.attach(attached, floater.FlowConfig(pace="free", zero_init=False, initial_scale=0.1))
    variants = {"plain": Variant(plain), "frozen": Variant(attached), "plain again": Variant(again)}
    times = take_turns(arguments.pairs, variants, lambda: batch(arguments.batch, arguments.length))
    report(arguments, times, "frozen dynamics")


def batch(rows: int, longest: int) -> dict[str, Tensor]:
    """Return random rows of similar length, padded, like the batches of fine-tuning."""
    width = random.randint(longest // 2, longest)
    ids = torch.randint(3, 50_000, (rows, width))
    for row in range(rows):
        ids[row, width - random.randint(0, width // 8) :] = PAD
    return {
        "input_ids": ids,
        "attention_mask": ids.ne(PAD).long(),
        "labels": torch.randint(0, 2, (rows,)),
    }


if __name__ == "__main__":
    main()
