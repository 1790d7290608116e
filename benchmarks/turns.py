"""Time several variants in turn, in one process; shared by baked.py and frozen.py."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from floater.files import write_text


def parse(
    name: str, description: str | None, sizes: Mapping[str, int], **texts: str
) -> argparse.Namespace:
    """Parse the command line and set up PyTorch.

    Args:
        name: name of the benchmark.
        description: its help text.
        sizes: options, `threads` among them, with their defaults; all must be positive.
        **texts: further options, with their help.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, value in sizes.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    for option, text in texts.items():
        parser.add_argument(f"--{option}", help=text)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/{name}.json"))
    arguments = parser.parse_args()
    for option in sizes:
        if getattr(arguments, option) < 1:
            print(
                f"{name}.py: `--{option}` must be positive, but is {getattr(arguments, option)}.",
                file=sys.stderr,
            )
            sys.exit(2)
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    random.seed(0)
    return arguments


def take_turns(
    rounds: int, variants: Mapping[str, Callable[[Any], float]], make_input: Callable[[], Any]
) -> dict[str, list[float]]:
    """Return the seconds of each variant, one per round.

    A round runs all variants on the same input, in random order.

    Args:
        rounds: number of rounds after a warm-up round.
        variants: what to time; each returns its own seconds.
        make_input: creates the input of a round.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    warm_up = make_input()
    for variant in variants.values():
        variant(warm_up)
    for _ in track(range(rounds), description="rounds", console=Console(stderr=True)):
        shared_input = make_input()
        for name in random.sample(list(variants), len(variants)):
            times[name].append(variants[name](shared_input))
    return times


def report(
    arguments: argparse.Namespace, times: dict[str, list[float]], label: str, **facts: Any
) -> None:
    """Print and save the cost of the second variant, and of the third, relative to the first.

    The third variant is the first one again, as a control.

    Args:
        arguments: the command line.
        times: seconds of the three variants.
        label: name of the second variant in the output.
        **facts: further values to save.
    """
    base, other, again = times.values()
    result: dict[str, Any] = {
        **facts,
        "settings": vars(arguments) | {"out": str(arguments.out), "torch": torch.__version__},
        "times": times,
        "overhead": overhead(base, other),
        "control": overhead(base, again),
    }
    write_text(arguments.out, json.dumps(result, indent=1) + "\n")
    for name, title in (("overhead", label), ("control", "untouched against untouched")):
        middle, low, high = result[name]
        print(
            f"{title}: {100 * middle:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} "
            f"%), {arguments.pairs} rounds"
        )


def overhead(
    base: list[float], other: list[float], draws: int = 2000
) -> tuple[float, float, float]:
    """Return the median over rounds of the ratio minus 1, and its bootstrap interval."""
    ratios = [b / a - 1 for a, b in zip(base, other, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[int(0.025 * draws)], medians[int(0.975 * draws)]
