"""Cost of encodings at inference: forward and generate, plain, attached and baked.

    python benchmarks/inference.py --model bert-base|llama [--pairs 40] [--threads 2]
        [--prompt 64] [--new 64] [--out benchmarks/results/inference-MODEL.json]

Each round times, in one process and in random order, the untouched model, the same model with a
flow at q, k and v of every block that is not baked (its weights do not change, so it solves once
and compares them in every call), the same with a baked one, and the untouched model again. All have
the same weights in memory. The flow is that of training.py: its encodings are not zero. bert-base
is the body alone, 8 × 256; llama has the shape of SmolLM2-135M with a vocabulary of 8,192, 2 × 256,
and also generates: 64 tokens, greedily, after a prompt of 64, in two rows. The output is the median
ratio minus 1 with a bootstrap interval, and the same for untouched against untouched.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import floater
from step_models import CHANGEABLE, SHAPES, Shape, build, flow_config, shape_of
from turns import begin, measured, options, save, show_variants, take_turns, twin

SIZES: dict[str, int | None] = {"pairs": 40, "threads": 2, "prompt": 64, "new": 64}
MODELS = [name for name, shape in SHAPES.items() if shape.kind != "marian"]
PLAIN, ATTACHED, BAKED, AGAIN = "plain", "attached", "baked", "plain-again"


def models(shape: Shape, length: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the model of each variant, and the seconds that it took to attach and to bake."""
    whole = build(shape).eval()
    plain: Any = whole if shape.kind == "llama" else whole.base_model
    attached, baked = twin(plain), twin(plain)
    floater.attach(attached, flow_config())
    begun = time.perf_counter()
    made = floater.attach(baked, flow_config())
    attach_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    made.bake(length)
    seconds = {"attach_seconds": attach_seconds, "bake_seconds": time.perf_counter() - begun}
    return {PLAIN: plain, ATTACHED: attached, BAKED: baked, AGAIN: twin(plain)}, seconds


def timed(call: Callable[[Tensor], object]) -> Callable[[Tensor], float]:
    @torch.inference_mode()
    def seconds(ids: Tensor) -> float:
        begun = time.perf_counter()
        call(ids)
        return time.perf_counter() - begun

    return seconds


def forward(model: Any) -> Callable[[Tensor], object]:
    return lambda ids: model(input_ids=ids)


def generate(model: Any, new: int) -> Callable[[Tensor], object]:
    """A call that makes exactly so many tokens: nothing ends a row early."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def call(ids: Tensor) -> object:
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **settings
        )
        assert made.shape[1] == ids.shape[1] + new
        return made

    return call


def run(arguments: argparse.Namespace, shape: Shape) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what was measured of each task and variant, and the seconds to attach and bake."""
    length = max(shape.length, arguments.prompt + arguments.new)
    variants, seconds = models(shape, length)
    rows = max(shape.tokens // shape.length, 1)
    tasks: dict[str, Callable[[Any], Callable[[Tensor], object]]] = {"forward": forward}
    lengths = {"forward": shape.length, "generate": arguments.prompt}
    if shape.kind == "llama":
        tasks["generate"] = lambda model: generate(model, arguments.new)
    results: dict[str, Any] = {}
    for task, make in tasks.items():
        draw = partial(torch.randint, 3, shape.vocabulary, (rows, lengths[task]))
        calls = {name: timed(make(model)) for name, model in variants.items()}
        times = take_turns(arguments.pairs, calls, draw)
        results[task] = {name: measured(times[PLAIN], times[name]) for name in variants}
    return results, seconds


def main(given: Sequence[str] | None = None) -> int:
    parser = options("inference", __doc__, {**SIZES, **dict.fromkeys(CHANGEABLE)})
    parser.add_argument("--model", required=True, choices=MODELS)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args(given)
    if arguments.out is None:
        arguments.out = Path(f"benchmarks/results/inference-{arguments.model}.json")
    begin(arguments.threads, arguments.out)
    shape = shape_of(arguments)
    results, seconds = run(arguments, shape)
    facts = {"model": arguments.model, "shape": asdict(shape), **seconds}
    save(arguments, "inference", **facts, tasks=results)
    for task, variants in results.items():
        show_variants(f"{task}, {arguments.model}", variants)
    print(f"attach took {seconds['attach_seconds']:.2f} s, bake {seconds['bake_seconds']:.2f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
