"""What frozen dynamics cost in fine-tuning: a RoBERTa of 6 layers, 384 wide, batch 16 × 128, interleaved in one process.

    python benchmarks/frozen.py [--pairs 40] [--threads 2] [--out benchmarks/results/frozen.json]

Each round times, in random order, one training step (forward, backward, AdamW) of the untouched model, of the same model with a
frozen flow that is not zero at q, k and v of every block, and of a second untouched model. Batches have other lengths in every
round and the same within it. Printed are the median ratio with a bootstrap interval, and the same for untouched against untouched.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from transformers import RobertaConfig, RobertaForSequenceClassification

import floater
from baked import overhead
from floater.files import write_text
from floater.training import parameter_groups

console = Console(stderr=True)
PAD = 1


class Arm:
    """A model with its optimiser."""

    def __init__(self, model: RobertaForSequenceClassification) -> None:
        self._model = model.train()
        groups = parameter_groups(model, lr=1e-5, weight_decay=0.1, freeze_flow=True, required=False)
        self._optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.98), eps=1e-6)

    def step(self, batch: dict[str, Tensor]) -> float:
        """Seconds of one training step."""
        begun = time.perf_counter()
        self._model(**batch).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    random.seed(0)
    plain = RobertaForSequenceClassification(
        RobertaConfig(
            num_hidden_layers=arguments.layers,
            hidden_size=arguments.width,
            num_attention_heads=12,
            intermediate_size=4 * arguments.width,
            max_position_embeddings=arguments.length + 2,
        )
    )
    attached, again = copy.deepcopy(plain), copy.deepcopy(plain)
    floater.attach(attached, floater.FlowConfig(zero_init=False, initial_scale=0.1))
    arms = {"plain": Arm(plain), "frozen": Arm(attached), "plain again": Arm(again)}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        arm.step(batch(arguments.batch, arguments.length))
    for _ in track(range(arguments.pairs), description="rounds", console=console):
        made = batch(arguments.batch, arguments.length)
        for name in random.sample(list(arms), len(arms)):
            times[name].append(arms[name].step(made))
    result: dict[str, Any] = {
        "settings": vars(arguments) | {"out": str(arguments.out), "torch": torch.__version__},
        "times": times,
        "frozen": overhead(times["plain"], times["frozen"]),
        "control": overhead(times["plain"], times["plain again"]),
    }
    write_text(arguments.out, json.dumps(result, indent=1) + "\n")
    for name, label in (("frozen", "frozen dynamics"), ("control", "untouched against untouched")):
        middle, low, high = result[name]
        print(f"{label}: {100 * middle:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} %), {arguments.pairs} rounds")


def batch(rows: int, longest: int) -> dict[str, Tensor]:
    """Random rows of about equal length, padded, as batches of fine-tuning are."""
    width = random.randint(longest // 2, longest)
    ids = torch.randint(3, 50_000, (rows, width))
    for row in range(rows):
        ids[row, width - random.randint(0, width // 8) :] = PAD
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long(), "labels": torch.randint(0, 2, (rows,))}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"pairs": 40, "threads": 2, "batch": 16, "length": 128, "layers": 6, "width": 384}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/frozen.json"))
    arguments = parser.parse_args()
    for name in sizes:
        if getattr(arguments, name) < 1:
            print(f"frozen.py: `--{name}` must be positive, but is {getattr(arguments, name)}.", file=sys.stderr)
            sys.exit(2)
    return arguments


if __name__ == "__main__":
    main()
