"""Cost of an extended model on inputs that it could take before, and of extending it.

    python benchmarks/extended.py --model FOLDER --length 1024 [--pairs 40] [--threads 2]
        [--batch 2] [--tokens N] [--new 32] [--out benchmarks/results/extended.json]

The folder, or `pip:package/folder` inside an installed package as in configs, holds a pretrained
model with a position table or rotary positions. Each round times, in one process and in random
order, the untouched model, the same model extended to `--length`, the same ready for inference (a
longer table merged into the model, the phases of a rotary model baked), and the untouched model
again: a forward pass on `--tokens` tokens (by default as many as the model has positions, at most
512), and for a causal language model `--new` tokens of greedy decoding after half as many. The
phases start at YaRN, so that they are not the identity. The output is the median ratio minus 1 with
a bootstrap interval, the same for untouched against untouched, and the time and peak memory of
`floater extend` beside those of loading and saving the model alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import floater
from floater.attachments.layouts import LAYOUTS, position_limit
from floater.tasks.understanding.models import locate
from inference import forward, generate, timed
from turns import begin, measured, options, save, show_variants, take_turns, twin

SIZES: dict[str, int | None] = {
    **{"length": 1024, "pairs": 40, "threads": 2, "batch": 2},
    **{"tokens": None, "new": 32},
}
PLAIN, EXTENDED, READY, AGAIN = "plain", "extended", "ready", "plain-again"
_LOAD_AND_SAVE = (
    "import sys; from transformers import {0} as C; "
    "C.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])"
)


def models(folder: Path, length: int) -> tuple[dict[str, Any], type[Any], bool]:
    """Return the model of each variant, its Auto class, and whether its positions are rotary."""
    config = AutoConfig.from_pretrained(folder)
    layout = LAYOUTS.get(config.model_type)
    rotary = layout is not None and bool(layout.rotary)
    auto = AutoModelForCausalLM if "decoder" in (layout.stacks if layout else ()) else AutoModel
    plain = auto.from_pretrained(folder, dtype=torch.float32).eval()
    extended, ready = twin(plain), twin(plain)
    scaling: Literal["yarn", "waves"] = "yarn" if rotary else "waves"
    floater.extend(extended, length, scaling=scaling)
    attached = floater.extend(ready, length, scaling=scaling)
    if rotary:
        attached.bake(length)
    else:
        attached.merge()
    return {PLAIN: plain, EXTENDED: extended, READY: ready, AGAIN: twin(plain)}, auto, rotary


def cost_of(command: Sequence[str]) -> dict[str, float]:
    """Return the seconds and the peak memory in bytes of a command."""
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        problem = lines[-1] if lines else "no message"
        raise floater.FloaterError(f"`{command[1]} {command[2]}` failed: {problem}")
    # the largest of all children so far: the commands must be run in order of their memory
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"seconds": time.perf_counter() - begun, "peak_bytes": peak}


def extension_costs(folder: Path, length: int, auto: type[Any]) -> dict[str, dict[str, float]]:
    """Return the costs of loading and saving a model, and of extending it."""
    with tempfile.TemporaryDirectory() as place:
        script = _LOAD_AND_SAVE.format(auto.__name__)
        plain = [sys.executable, "-c", script, str(folder), f"{place}/plain"]
        more = ["--length", str(length), "--out", f"{place}/extended"]
        command = [sys.executable, "-m", "floater", "extend", str(folder), *more]
        return {"load and save": cost_of(plain), "floater extend": cost_of(command)}


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what was measured of the model in a folder."""
    variants, auto, rotary = models(folder, arguments.length)
    config = variants[PLAIN].config
    limit: Any = config.max_position_embeddings if rotary else position_limit(config)
    tokens: int = arguments.tokens or min(limit, 512)
    tasks: dict[str, Callable[[Any], Callable[..., object]]] = {"forward": forward}
    lengths = {"forward": tokens, "generate": tokens // 2}
    if auto is AutoModelForCausalLM:
        tasks["generate"] = lambda model: generate(model, arguments.new)
    results: dict[str, Any] = {}
    for task, make in tasks.items():
        draw = partial(torch.randint, 3, config.vocab_size, (arguments.batch, lengths[task]))
        calls = {name: timed(make(model)) for name, model in variants.items()}
        times = take_turns(arguments.pairs, calls, draw)
        results[task] = {name: measured(times[PLAIN], times[name]) for name in variants}
    costs = extension_costs(folder, arguments.length, auto)
    return {
        "positions": limit,
        "tokens": tokens,
        "rotary": rotary,
        "tasks": results,
        "extending": costs,
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = options("extended", __doc__, SIZES)
    parser.add_argument("--model", required=True, help="folder of a pretrained model")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/extended.json"))
    arguments = parser.parse_args(given)
    try:
        folder = Path(locate(arguments.model))
        if not (folder / "config.json").is_file():
            parser.error(f"--model must be a folder with a config.json, but {folder} is not one.")
        begin(arguments.threads, arguments.out)
        found = run(arguments, folder)
    except floater.FloaterError as error:
        parser.error(str(error))
    arguments.model = folder.name  # a record names no folder of this machine
    save(arguments, "extended", **found)
    for task, variants in found["tasks"].items():
        title = f"{task}, {folder.name}, {found['tokens']} tokens"
        show_variants(title, variants)
    for name, cost in found["extending"].items():
        print(f"{name}: {cost['seconds']:.1f} s, peak {cost['peak_bytes'] / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
