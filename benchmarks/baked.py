"""What a baked attachment costs at inference: BERT-base size, batch 8 × 256, interleaved in one process.

    python benchmarks/baked.py [--pairs 40] [--threads 2] [--out benchmarks/results/baked.json]

Each round times, in random order, the untouched model, the same model with a baked attachment (random encodings that are not
zero, at q, k and v of every block), and the untouched model once more. Printed are the median ratio with a bootstrap interval,
the same for untouched against untouched, and how long `attach` and `bake` took.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from transformers import BertConfig, BertModel

import floater
from floater.files import write_text

console = Console(stderr=True)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.width,
        num_attention_heads=12,
        intermediate_size=4 * arguments.width,
    )
    plain = BertModel(config).eval()
    attached = copy.deepcopy(plain)
    begun = time.perf_counter()
    made = floater.attach(attached, floater.FlowConfig(zero_init=False, initial_scale=0.1))
    attach_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    made.bake(arguments.length)
    bake_seconds = time.perf_counter() - begun
    ids = torch.randint(1000, 20_000, (arguments.batch, arguments.length))
    arms = {"plain": plain, "baked": attached, "plain again": plain}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for model in arms.values():
        run(model, ids)
    for _ in track(range(arguments.pairs), description="rounds", console=console):
        for name in random.sample(list(arms), len(arms)):
            times[name].append(run(arms[name], ids))
    result: dict[str, Any] = {
        "attach_seconds": attach_seconds,
        "bake_seconds": bake_seconds,
        "settings": vars(arguments) | {"out": str(arguments.out), "torch": torch.__version__},
        "times": times,
        "baked": overhead(times["plain"], times["baked"]),
        "control": overhead(times["plain"], times["plain again"]),
    }
    write_text(arguments.out, json.dumps(result, indent=1) + "\n")
    for name, label in (("baked", "baked attachment"), ("control", "untouched against untouched")):
        middle, low, high = result[name]
        print(f"{label}: {100 * middle:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} %)")
    print(f"attach took {attach_seconds:.2f} s, bake({arguments.length}) {bake_seconds:.2f} s; {arguments.pairs} rounds.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/baked.json"))
    arguments = parser.parse_args()
    for name in ("pairs", "threads", "batch", "length", "layers", "width"):
        if getattr(arguments, name) < 1:
            print(f"baked.py: `--{name}` must be positive, but is {getattr(arguments, name)}.", file=sys.stderr)
            sys.exit(2)
    return arguments


@torch.inference_mode()
def run(model: BertModel, ids: torch.Tensor) -> float:
    begun = time.perf_counter()
    model(input_ids=ids)
    return time.perf_counter() - begun


def overhead(base: list[float], other: list[float], draws: int = 2000) -> tuple[float, float, float]:
    """Median of the ratios of a round, less 1, and its bootstrap interval."""
    ratios = [b / a - 1 for a, b in zip(base, other, strict=True)]
    random.seed(0)
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[int(0.025 * draws)], medians[int(0.975 * draws)]


if __name__ == "__main__":
    main()
