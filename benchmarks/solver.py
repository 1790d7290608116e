"""Speed and accuracy of the solver compared with torchdiffeq, forward + backward.

    python benchmarks/solver.py [--positions 64,256,1024,4096] [--repeats 7] [--threads 2]
                                [--out benchmarks/results/solver.json] [--budget-minutes 3] [--all]

The task is that of a Transformer-base: 18 trajectories of 512 dimensions, h a small network with
tanh, Xavier-normal weights × 0.5 and zero biases, one state every Δ = 0.1, float32. A run solves
for the states at all positions and backpropagates a fixed random cotangent to p(start) and to the
weights.

Measurements for each method and number of positions:

- evaluations of h in the forward pass;
- state error: largest deviation from a float64 RK4 reference at Δ/20, relative to the largest
state;
- gradient error: ‖g - g_ref‖ / ‖g_ref‖ against the same reference, the worst of p(start) and the
weight tensors;
- time: median over rounds. A round, in one process, runs every competitor once, and ours several
times before each of them;
- ratio: competitor / ours within a round, as the median over rounds with the smallest and the
largest.

torchdiffeq's dopri5 runs at the loosest tolerance of a grid whose state error is no larger than
ours, and at rtol = 1e-5. The last row is ours without the compiled kernel, as tensor operations.
Rows that would take too much time or memory are skipped, with a note in the table. The
reference is slow: about 12 minutes for 4,096 positions.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from contestants import (
    ADJOINT,
    DELTA,
    DIM,
    INSTALLED,
    MIDPOINT,
    OURS,
    OURS_ADJOINT,
    OURS_RK4,
    OURS_TENSORS,
    SEED,
    STRICT,
    TRAJECTORIES,
    Answer,
    Contestant,
    Problem,
    adaptive,
    check_reference,
    reference_answer,
    run,
    solve_adaptive,
    state_error,
)
from floater.files import write_text
from solver_rows import Row, table
from turns import Parser, begin, number

BURST = 5  # runs of ours before each competitor's run
MEMORY_LIMIT = 8e9
PROBE = 64  # positions from which the time of a first, large run is projected
GRID = [10 ** (-k / 8) for k in range(8, 57)]  # tolerances tried, from the loosest
BACKWARD_FACTOR = 3  # forward + backward with autograd over forward alone, for projections only

progress = Console(stderr=True, log_path=False)


class OutOfTime(Exception):
    """A solve went past its deadline."""


@dataclass(frozen=True)
class Settings:
    """The command line."""

    positions: tuple[int, ...]
    repeats: int
    threads: int
    out: Path
    budget_minutes: float
    all: bool

    @property
    def budget(self) -> float:
        return 60 * self.budget_minutes


# --- measuring ---


@contextmanager
def watched(problem: Problem, deadline: float = math.inf) -> Iterator[list[int]]:
    """Count the calls of h in element 0; raise OutOfTime in the first call after the deadline."""
    calls = [0]

    def note(*_: object) -> None:
        calls[0] += 1
        if time.perf_counter() > deadline:
            raise OutOfTime

    handle = problem.dynamics.register_forward_pre_hook(note)
    try:
        yield calls
    finally:
        handle.remove()


def timed(contestant: Contestant, problem: Problem) -> float:
    gc.collect()
    return clocked(contestant, problem)


def burst(contestant: Contestant, problem: Problem) -> list[float]:
    """Time several runs in a row; garbage is collected before the first, not between them."""
    gc.collect()
    return [clocked(contestant, problem) for _ in range(BURST)]


def clocked(contestant: Contestant, problem: Problem) -> float:
    begin = time.perf_counter()
    run(contestant, problem)
    return time.perf_counter() - begin


def inspect(contestant: Contestant, problem: Problem, reference: Answer) -> tuple[Row, float]:
    """Return the errors and evaluations of a warm-up run, and its seconds."""
    begin = time.perf_counter()
    with watched(problem) as calls:
        states = contestant.solve(problem)
        evaluations = calls[0]
    gradients = torch.autograd.grad(states, problem.inputs, grad_outputs=problem.cotangent)
    seconds = time.perf_counter() - begin
    answer = Answer(states.detach(), gradients)
    if contestant.count is not None:
        evaluations = contestant.count(problem)
    row = Row(problem.positions, contestant.key, contestant.label, evaluations)
    row.state_error, row.gradient_error = (
        answer.state_error(reference),
        answer.gradient_error(reference),
    )
    return row, seconds


def find_adaptive(
    problem: Problem, reference: Answer, target: float, settings: Settings
) -> tuple[Row, float]:
    """Find the loosest tolerance whose error is at most `target`; also project its seconds."""
    row = Row(problem.positions, "torchdiffeq-dopri5", "torchdiffeq dopri5, autograd")
    begin = time.perf_counter()
    for tolerance in GRID:
        since = time.perf_counter()
        try:
            with torch.no_grad(), watched(problem, begin + settings.budget) as calls:
                error: float | None = state_error(solve_adaptive(problem, tolerance), reference)
        except OutOfTime:
            row.note = (
                f"no tolerance above {tolerance:.1e} reached our error in "
                f"{settings.budget_minutes:g} min of search"
            )
            return row, math.inf
        except AssertionError:  # torchdiffeq found no step small enough
            error = None
        row.tolerances_tried.append(
            {"tolerance": tolerance, "state_error": error, "evaluations": calls[0]}
        )
        if error is not None and error <= target:
            row.tolerance, row.evaluations, row.state_error = tolerance, calls[0], error
            return row, BACKWARD_FACTOR * (time.perf_counter() - since)
    row.note = f"no tolerance down to {GRID[-1]:.1e} reached our error"
    return row, math.inf


def reason_to_skip(
    evaluations: int | None, saved_tensors: int, seconds: float, settings: Settings
) -> str | None:
    memory = (evaluations or 0) * saved_tensors * TRAJECTORIES * DIM * 4
    if memory > MEMORY_LIMIT:
        return f"skipped (would need ~{memory / 1e9:.0f} GB)"
    if seconds > settings.budget:
        return f"skipped (would take ~{seconds / 60:.1f} min)"
    return None


class Bench:
    """Runs one size after the other; the times of one size predict those of the next."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.last_run: dict[str, tuple[int, float]] = {}  # key → positions and seconds

    def size(self, positions: int) -> list[Row]:
        problem = Problem.make(positions)
        step(positions, "float64 reference")
        reference = reference_answer(problem)
        step(positions, OURS.label)
        ours, _ = inspect(OURS, problem, reference)
        assert ours.state_error is not None
        entrants: list[tuple[Contestant, Row]] = []
        rows = [ours]
        for contestant, blank, seconds in self._candidates(problem, reference, ours.state_error):
            row = self._admit(contestant, blank, seconds, problem, reference)
            rows.append(row)
            if row.note is None:
                entrants.append((contestant, row))
        self._rounds(problem, ours, entrants)
        self._note_load(rows)
        return rows

    def _note_load(self, rows: Sequence[Row]) -> None:
        load = os.getloadavg()[0]
        for row in rows:
            row.load_average = load
        if load > self.settings.threads + 0.5:
            progress.log(
                f"load average {load:.1f}: other processes were running, so repeat the measurement"
            )

    def _candidates(
        self, problem: Problem, reference: Answer, target: float
    ) -> Iterator[tuple[Contestant, Row, float]]:
        """Yield the competitors, before their first full run, with rows and projected seconds."""
        step(problem.positions, "torchdiffeq dopri5: searching the tolerance")
        row, seconds = find_adaptive(problem, reference, target, self.settings)
        yield adaptive(row.tolerance or math.nan), row, seconds
        for contestant in (
            STRICT,
            MIDPOINT,
            ADJOINT,
            OURS_TENSORS,
            *((OURS_ADJOINT, OURS_RK4) if self.settings.all else ()),
        ):
            row = Row(problem.positions, contestant.key, contestant.label)
            yield contestant, row, self._projected(contestant, problem.positions)

    def _projected(self, contestant: Contestant, positions: int) -> float:
        """Project the seconds of a run from those of the last size, or of a short probe."""
        if contestant.key not in self.last_run:
            if positions <= 4 * PROBE:
                return 0.0
            step(PROBE, f"{contestant.label}: probing the time for {positions:,} positions")
            self.last_run[contestant.key] = PROBE, timed(contestant, Problem.make(PROBE))
        before, seconds = self.last_run[contestant.key]
        return seconds * positions / before

    def _admit(
        self, contestant: Contestant, row: Row, seconds: float, problem: Problem, reference: Answer
    ) -> Row:
        """Warm up and inspect what fits the budget; the row of what does not gets a note."""
        evaluations = row.evaluations
        if evaluations is None and contestant.evaluations is not None:
            evaluations = contestant.evaluations(problem.positions)
        row.note = row.note or reason_to_skip(
            evaluations, contestant.saved_tensors, seconds, self.settings
        )
        if row.note:
            progress.log(f"{row.label}: {row.note}")
            return row
        step(problem.positions, contestant.label)
        seen, _ = inspect(contestant, problem, reference)
        return replace(seen, tolerance=row.tolerance, tolerances_tried=row.tolerances_tried)

    def _affords_another(self, row: Row) -> bool:
        """Return whether a row was never timed, or another timed run still fits the budget."""
        return not row.seconds or sum(row.seconds) + min(row.seconds) <= self.settings.budget

    def _rounds(
        self, problem: Problem, ours: Row, entrants: Sequence[tuple[Contestant, Row]]
    ) -> None:
        for turn in range(self.settings.repeats):
            present = [
                (contestant, row) for contestant, row in entrants if self._affords_another(row)
            ]
            names = ", ".join(contestant.key for contestant, _ in present)
            step(
                problem.positions,
                f"round {turn + 1} of {self.settings.repeats}: ours, {names}".rstrip(", "),
            )
            own: list[float] = []
            for contestant, row in present:
                own += burst(OURS, problem)
                row.seconds.append(timed(contestant, problem))
            own += [] if own else burst(OURS, problem)
            ours.seconds.append(own)
            for _, row in present:
                row.ratios.append(row.seconds[-1] / median(own))
        ours.median_seconds = median(second for own in ours.seconds for second in own)
        for _, row in entrants:
            row.median_seconds, row.ratio_median = median(row.seconds), median(row.ratios)
            row.ratio_min, row.ratio_max = min(row.ratios), max(row.ratios)
            self.last_run[row.key] = problem.positions, row.median_seconds


def step(positions: int, what: str) -> None:
    progress.log(f"{positions:,} positions: {what}")


# --- the command line ---


def save(settings: Settings, check: dict[str, float], rows: Sequence[Row]) -> None:
    """Write the JSON atomically."""
    report = {
        "settings": {**asdict(settings), "out": str(settings.out)},
        "task": {
            "dim": DIM,
            "trajectories": TRAJECTORIES,
            "delta": DELTA,
            "seed": SEED,
            "activation": "tanh",
        },
        "versions": {
            "floater-transformers": version("floater-transformers"),
            "torch": torch.__version__,
            "torchdiffeq": version("torchdiffeq"),
            "python": platform.python_version(),
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "machine": platform.platform(),
        },
        "reference_check": check,
        "rows": [asdict(row) for row in rows],
    }
    write_text(
        settings.out, json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({number(int, 2)(part) for part in text.split(",")}))


def parse(arguments: Sequence[str] | None = None) -> Settings:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = Parser(
        prog="benchmarks/solver.py",
        description=summary,
        epilog=details.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--positions", type=sizes, default=(64, 256, 1024, 4096), help="sizes, separated by commas"
    )
    parser.add_argument(
        "--repeats", type=number(int, 1), default=7, help="rounds, fewer for slow rows (default: 7)"
    )
    parser.add_argument(
        "--threads", type=number(int, 1), default=2, help="threads of PyTorch (default: 2)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/solver.json"), help="JSON to write"
    )
    parser.add_argument(
        "--budget-minutes",
        type=number(float, 0.01),
        default=3.0,
        help="time limit per row; slower rows are cut short or skipped (default: 3)",
    )
    parser.add_argument(
        "--all", action="store_true", help="also ours with the adjoint, and with RK4 at Δ/5"
    )
    settings = Settings(**vars(parser.parse_args(arguments)))
    if not INSTALLED:
        parser.error("torchdiffeq is not installed: pip install floater-transformers[bench]")
    try:
        settings.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: cannot create {settings.out.parent}: {error.strerror}")
    if settings.out.is_dir() or not os.access(settings.out.parent, os.W_OK):
        parser.error(f"argument --out: must be a writable file, but is {str(settings.out)!r}")
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    settings = parse(arguments)
    begin(settings.threads)
    step(16, "comparing the reference with torchdiffeq dopri5 in float64")
    check = check_reference()
    differences = (
        f"states differ by {check['state_error']:.1e}, gradients by {check['gradient_error']:.1e}"
    )
    if not max(check.values()) <= 1e-8:
        progress.print(f"The float64 reference is not reliable: {differences}, more than 1e-8.")
        return 1
    progress.log(f"the float64 reference agrees with torchdiffeq to 1e-8: {differences}")
    bench, rows = Bench(settings), list[Row]()
    for positions in settings.positions:
        rows += bench.size(positions)
        save(settings, check, rows)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(table(rows))
    console.print(f"Float64 reference against torchdiffeq dopri5 in float64: {differences}.")
    console.print(f"Saved to {settings.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
