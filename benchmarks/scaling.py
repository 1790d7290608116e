"""Cost of one solve and one reverse sweep of a flow against its sizes, with fitted exponents.

    python benchmarks/scaling.py [--repeats 7] [--threads 2] [--flow free|bounded|fresh]
        [--no-kernel] [--factors length,sites,width,rtol] [--out benchmarks/results/scaling.json]

One factor varies at a time: length (64 … 16,384 positions), sites (6 … 144), width (128 … 1,024)
and rtol (1e-2 … 1e-6, with atol a tenth of it, as by default), around 256 positions, 18 sites,
512 dimensions and rtol 1e-4. A repeat times all settings once, in random order: a table of
encodings, and the gradient of a random cotangent with respect to p(start) and the weights of h. The
weights move a little in between, as in training, so that every repeat solves.

The output is the median of seconds, the evaluations of h, the evaluations per unit of time (ten
positions), and the slope of log seconds over log value for each factor with its standard error: 1
means linear. `--flow` is the flow of training.py (`free`), the same with a horizon of 100 (a
bounded view of time), or `FlowConfig()`. With `--no-kernel` the tensor path is timed too. The
largest table has 604 MB, and its gradient as much.

`--largest` is the largest number of positions, sites and dimensions to try, for a quick look.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import floater
from floater.encoders import Flow
from step_models import flow_config
from turns import begin, options, save, seconds_text, show, take_turns

SIZES: dict[str, int | None] = {"repeats": 7, "threads": 2, "largest": None}
FACTORS: dict[str, tuple[Any, ...]] = {
    "length": (64, 256, 1024, 4096, 16_384),
    "sites": (6, 18, 36, 72, 144),
    "width": (128, 256, 512, 1024),
    "rtol": (1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
}
FLOWS = {"free": flow_config(), "bounded": flow_config(100.0), "fresh": floater.FlowConfig()}
KERNEL, TENSORS = "kernel", "tensors"
MOVE = 1e-4  # how far weights move between repeats, relative to their size


@dataclass(frozen=True)
class Setting:
    """The sizes of one measurement."""

    length: int = 256
    sites: int = 18
    width: int = 512
    rtol: float = 1e-4


@contextmanager
def without_kernel() -> Iterator[None]:
    """Solve with tensor operations."""
    before = os.environ.get("FLOATER_KERNEL")
    os.environ["FLOATER_KERNEL"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FLOATER_KERNEL"]
        else:
            os.environ["FLOATER_KERNEL"] = before


class Solve:
    """A flow, solved and differentiated."""

    def __init__(self, setting: Setting, config: floater.FlowConfig) -> None:
        update = {"rtol": setting.rtol, "atol": setting.rtol / 10}
        torch.manual_seed(0)
        self._length = setting.length
        self.flow: Flow = config.model_copy(update=update).build(setting.sites, setting.width)
        self._weights = list(self.flow.parameters())

    def __call__(self, move: float) -> float:
        """Return the seconds of one solve and one reverse sweep."""
        with torch.no_grad():
            for weight in self._weights:
                weight.mul_(move)
            self.flow.initial.add_(move * torch.finfo(torch.float32).eps)
        begun = time.perf_counter()
        states = self.flow.table(self._length)
        seconds = time.perf_counter() - begun
        cotangent = torch.randn_like(states)
        begun = time.perf_counter()
        torch.autograd.grad(states, self._weights, cotangent)
        return seconds + time.perf_counter() - begun


class TensorSolve(Solve):
    """The same without the kernel."""

    def __call__(self, move: float) -> float:
        with without_kernel():
            return super().__call__(move)


def settings(factors: Sequence[str], largest: int | None) -> dict[Setting, list[str]]:
    """Return the settings to measure, each with the factors whose series it is part of."""
    middle, found = Setting(), dict[Setting, list[str]]()
    if largest is not None:
        sizes = ("length", "sites", "width")
        middle = replace(middle, **{name: min(getattr(middle, name), largest) for name in sizes})
    for factor in factors:
        for value in FACTORS[factor]:
            if largest is None or value <= largest:
                found.setdefault(replace(middle, **{factor: value}), []).append(factor)
    return found


def fit(values: Sequence[float], costs: Sequence[float]) -> tuple[float, float] | None:
    """Return the slope of log cost over log value and its standard error; None for under three
    points.
    """
    if len(values) < 3:
        return None
    x, y = ([math.log(value) for value in numbers] for numbers in (values, costs))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle_x) ** 2 for a in x)
    slope = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread
    rest = sum((b - middle_y - slope * (a - middle_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, math.sqrt(rest / (len(x) - 2) / spread)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return rows and exponents for each path."""
    chosen = settings(arguments.factors, arguments.largest)
    paths: dict[str, type[Solve]] = {KERNEL: Solve}
    if arguments.no_kernel:
        paths[TENSORS] = TensorSolve
    config = FLOWS[arguments.flow]
    solves = {
        (path, setting): make(setting, config) for path, make in paths.items() for setting in chosen
    }
    gc.collect()
    moves = iter(1 + MOVE * (-1) ** turn for turn in range(arguments.repeats + 1))
    names = {f"{path} {setting}": solve for (path, setting), solve in solves.items()}
    times = take_turns(arguments.repeats, names, lambda: next(moves))
    rows: dict[str, list[dict[str, Any]]] = {path: [] for path in paths}
    for (path, setting), solve in solves.items():
        end = (setting.length - 1) * solve.flow.delta
        row = {
            **asdict(setting),
            "factors": chosen[setting],
            "seconds": median(times[f"{path} {setting}"]),
            "evaluations": solve.flow.evaluations,
            "evaluations_per_time": solve.flow.evaluations / end,
            "times": times[f"{path} {setting}"],
        }
        rows[path].append(row)
    return {"rows": rows, "exponents": {path: exponents(found) for path, found in rows.items()}}


def series_of(factor: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in which only this factor varies, by its value."""
    return sorted((row for row in rows if factor in row["factors"]), key=lambda row: row[factor])


def exponents(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the slope and its standard error by factor, for seconds and evaluations."""
    found = {}
    for factor in FACTORS:
        series = series_of(factor, rows)
        values = [row[factor] for row in series]
        slopes = {
            cost: fit(values, [row[cost] for row in series]) for cost in ("seconds", "evaluations")
        }
        if slopes["seconds"] is not None:
            found[factor] = slopes
    return found


def report(results: dict[str, Any]) -> None:
    for path, rows in results["rows"].items():
        for factor in FACTORS:
            series = series_of(factor, rows)
            if not series:
                continue
            slope = results["exponents"][path].get(factor)
            title = f"{factor}, {path}"
            if slope is not None:
                title += ": seconds ∝ {}^({:.2f} ± {:.2f})".format(factor, *slope["seconds"])
            show(
                title,
                (factor, "seconds", "evaluations", "per unit of time"),
                (
                    (
                        f"{row[factor]:,}",
                        seconds_text(row["seconds"]),
                        f"{row['evaluations']:,}",
                        f"{row['evaluations_per_time']:.2f}",
                    )
                    for row in series
                ),
            )


def main(given: Sequence[str] | None = None) -> int:
    parser = options("scaling", __doc__, SIZES)
    parser.add_argument("--flow", choices=FLOWS, default="free")
    parser.add_argument("--factors", default=",".join(FACTORS), help="separated by commas")
    parser.add_argument("--no-kernel", action="store_true", help="time the tensor path too")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scaling.json"))
    arguments = parser.parse_args(given)
    arguments.factors = arguments.factors.split(",")
    unknown = [factor for factor in arguments.factors if factor not in FACTORS]
    if unknown:
        parser.error(f"argument --factors: must be of {', '.join(FACTORS)}, but has {unknown[0]!r}")
    begin(arguments.threads, arguments.out)
    results = measure(arguments)
    save(arguments, "scaling", flow=arguments.flow, **results)
    report(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
