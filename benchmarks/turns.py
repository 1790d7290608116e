"""Options, and timing several variants in turn in one process; shared by the benchmarks."""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import math
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from floater.files import write_text
from floater.ode import kernel

T = TypeVar("T", bound=nn.Module)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def number(kind: type[int] | type[float], least: float) -> Callable[[str], Any]:
    """Return a reader of numbers for an option, which refuses those below `least`."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            what = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what} ≥ {least:g}, but is {text!r}")
        return value

    return read


def options(name: str, description: str | None, sizes: Mapping[str, int | None]) -> Parser:
    """Return a parser with the options that all benchmarks have.

    Args:
        name: name of the benchmark.
        description: its help text.
        sizes: options with their defaults; all must be positive.
    """
    parser = Parser(
        prog=f"{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, value in sizes.items():
        parser.add_argument(f"--{option}", type=number(int, 1), default=value)
    return parser


def begin(threads: int, out: Path | None = None, *, keep_memory: bool = True) -> None:
    """Set up PyTorch and the random numbers; end if a result could not be written.

    Args:
        threads: of PyTorch.
        out: file that will be written.
        keep_memory: whether the process keeps the memory that it frees, for times with less noise.
    """
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            probe = out.with_name(f".{out.name}.probe")
            probe.touch()
            probe.unlink()
        except OSError as error:
            print(f"--out must be a file that can be written, but {out}: {error}", file=sys.stderr)
            sys.exit(2)
    if keep_memory:
        _keep_memory()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    random.seed(0)


_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # names of glibc's malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD


def _keep_memory() -> None:
    """Let the process keep the memory it frees, where the C library can.

    By default glibc gives large blocks back to the system at moments that depend on the history of
    the process. Getting them again costs up to 100 ms a step, more than what is measured here.
    """
    try:
        adjust = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    _kept.append(bool(adjust(_MMAP_MAX, 0) and adjust(_TRIM_THRESHOLD, -1)))


_kept: list[bool] = []


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
    parser = options(name, description, sizes)
    for option, text in texts.items():
        parser.add_argument(f"--{option}", help=text)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/{name}.json"))
    arguments = parser.parse_args()
    begin(arguments.threads, arguments.out)
    return arguments


def twin(model: T) -> T:
    """Return a copy of a model with the same weights in memory: copies of weights at another place
    can be one percent slower or faster.
    """
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})


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
    parts = {name: _one_part(variant) for name, variant in variants.items()}
    return take_turns_in_parts(rounds, parts, make_input)


def _one_part(variant: Callable[[Any], float]) -> Callable[[Any], Iterator[float]]:
    def parts(given: Any) -> Iterator[float]:
        yield variant(given)

    return parts


def take_turns_in_parts(
    rounds: int,
    variants: Mapping[str, Callable[[Any], Iterator[float]]],
    make_input: Callable[[], Any],
) -> dict[str, list[float]]:
    """Return the seconds of each variant, one sum per round; see :func:`take_turns`.

    All variants run their first part, then all run their second one, each time in random order, so
    that what is compared runs within seconds of each other even if a whole variant takes a minute.

    Args:
        rounds: number of rounds after a warm-up round.
        variants: what to time, one part after the other; each yields the seconds of a part.
        make_input: creates the input of a round.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    _round(variants, make_input())
    for _ in track(range(rounds), description="rounds", console=Console(stderr=True)):
        for name, seconds in _round(variants, make_input()).items():
            times[name].append(seconds)
    return times


def _round(
    variants: Mapping[str, Callable[[Any], Iterator[float]]], shared_input: Any
) -> dict[str, float]:
    totals = dict.fromkeys(variants, 0.0)
    running = {name: variant(shared_input) for name, variant in variants.items()}
    while running:
        for name in random.sample(list(running), len(running)):
            seconds = next(running[name], None)
            if seconds is None:
                del running[name]
            else:
                totals[name] += seconds
    return totals


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


def machine() -> dict[str, Any]:
    """Return what a time depends on: the machine, the threads, the versions, the kernel."""
    return {
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "floater": version("floater-transformers"),
        "kernel": kernel.library() is not None,
        "keeps_memory": any(_kept),
    }


def _cpu() -> str:
    """The model of the CPU, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# --- reports of many variants ---


def measured(base: list[float], times: list[float], **facts: Any) -> dict[str, Any]:
    """Return what a report says of a variant: its median, its overhead, and the raw seconds.

    Args:
        base: seconds of the variant that it is compared with, in the same rounds.
        times: its own seconds.
        **facts: further values.
    """
    return {
        "rounds": len(times),
        "seconds": statistics.median(times),
        "overhead": overhead(base, times),
        **facts,
        "times": times,
        "base_times": base,
    }


def save(arguments: argparse.Namespace, benchmark: str, **facts: Any) -> None:
    """Write the JSON of a benchmark, with its settings and the machine."""
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
    }
    result = {"benchmark": benchmark, "settings": settings, "machine": machine(), **facts}
    write_text(arguments.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; all columns but the first hold numbers."""
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def show_variants(title: str, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the time and the overhead of each variant, as :func:`measured` returns them."""
    show(
        title,
        ("variant", "rounds", "time", "overhead", "95 % interval"),
        (
            (name, str(found["rounds"]), seconds_text(found["seconds"]), *overhead_texts(found))
            for name, found in variants.items()
        ),
    )


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


def overhead_texts(variant: Mapping[str, Any]) -> tuple[str, str]:
    """Return the overhead of a variant and its interval, as texts."""
    middle, low, high = (100 * value for value in variant["overhead"])
    return f"{middle:+.2f} %", f"{low:+.2f} to {high:+.2f} %"
