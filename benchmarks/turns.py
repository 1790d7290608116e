"""Arms timed in turn, in one process: what baked.py and frozen.py share."""

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


def parse(name: str, description: str | None, sizes: Mapping[str, int]) -> argparse.Namespace:
    """The command line: positive sizes with their defaults, and where to write; PyTorch is set up
    for them.

    Args:
        name: of the benchmark.
        description: its help.
        sizes: options, `threads` among them.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, value in sizes.items():
        parser.add_argument(f"--{option}", type=int, default=value)
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
    rounds: int, arms: Mapping[str, Callable[[Any], float]], given: Callable[[], Any]
) -> dict[str, list[float]]:
    """Seconds of each arm, one a round; a round asks all arms with the same input, in an order
    drawn anew.

    Args:
        rounds: how many, after one that warms up.
        arms: what to time; each returns its own seconds.
        given: makes the input of a round.
    """
    times: dict[str, list[float]] = {name: [] for name in arms}
    first = given()
    for arm in arms.values():
        arm(first)
    for _ in track(range(rounds), description="rounds", console=Console(stderr=True)):
        made = given()
        for name in random.sample(list(arms), len(arms)):
            times[name].append(arms[name](made))
    return times


def report(
    arguments: argparse.Namespace, times: dict[str, list[float]], label: str, **facts: Any
) -> None:
    """Print and write what the second arm costs against the first, and the third, which is the
    first again.

    Args:
        arguments: the command line.
        times: of three arms.
        label: what to call the second.
        **facts: more to write.
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
    for name, words in (("overhead", label), ("control", "untouched against untouched")):
        middle, low, high = result[name]
        print(
            f"{words}: {100 * middle:+.2f} % (95 % interval {100 * low:+.2f} to {100 * high:+.2f} "
            f"%), {arguments.pairs} rounds"
        )


def overhead(
    base: list[float], other: list[float], draws: int = 2000
) -> tuple[float, float, float]:
    """Median of the ratios of a round, less 1, and its bootstrap interval."""
    ratios = [b / a - 1 for a, b in zip(base, other, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[int(0.025 * draws)], medians[int(0.975 * draws)]
