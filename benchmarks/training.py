"""Cost of encodings in training: the whole step, of several models and many variants.

    python benchmarks/training.py --model transformer-base|bert-base|llama|tiny [--pairs 40]
        [--threads 2] [--variants flow,flow-jitter,…] [--accumulate 1] [--paper-rounds 3]
        [--gigabytes 12] [--out benchmarks/results/training-MODEL.json]
    python benchmarks/training.py --model … --memory    # peak memory instead of time

Each round times, in one process and in random order, one training step (forward, backward, AdamW,
zero_grad) of every variant on the same batch. Each has weights and an optimiser of its own. The
output is the median ratio to the mean of two untouched models minus 1, with a bootstrap interval,
and that of one of these to the other. If the variants need more than `--gigabytes`, they are
measured in several groups, each with its own two untouched models. With `--accumulate N` a step has
N micro-batches, and the variants take turns at each of them.

Models: transformer-base (translation, 6+6 layers, d 512, 2,048 target tokens in rows of up to 64,
vocabulary 16,000), tiny (the preset: 4+4 layers, d 128, the same batches, vocabulary 8,000),
bert-base (masked LM, 8 × 256) and llama (2 × 256, the shape of SmolLM2-135M with a vocabulary of
8,192 instead of 49,152, so that a step has less to do beside the blocks).

Variants at q, k and v of all attentions, with the model's own positions kept: `flow` (weights that
are not zero, so that the solver works for real), `flow-fresh` (`FlowConfig()`: zero at first),
`flow-jitter` (every row has times of its own, stretched by up to 4, and the horizon that
docs/choose.md advises for it), `flow-coarse` and `flow-jitter-coarse` (the same with rtol = 1e-3
instead of 1e-4), `flow-frozen`, `sinusoidal`, `learned`. In place of the model's positions:
`rotary`, `rotary-flow`. `paper` has the same weights as `flow`, solved in every step as the paper
does, by torchdiffeq's rk4 with steps of Δ/5 and its adjoint, inside the same attachment; it gets
`--paper-rounds` rounds of its own with an untouched model. `paper-cached` is computed from these
rounds: one step that solves and 15 that keep the table as a constant, over 16. The variants of
x-transformers, if it is installed, are compared with its model without positions.

For every flow: evaluations of h a step, and the seconds of solve and reverse sweep, timed alone
after each step in a copy of the flow; for the paper's way, the step minus one that keeps its table.
`--memory` runs a few steps of each variant in a fresh process and compares the largest resident
sizes (getrusage).
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import paper_flow
import peers
from paper_flow import KEEP_FOR, solve_as_the_paper
from step_models import CHANGEABLE, SHAPES, VARIANTS, Batch, Shape, batch, build, sensible, shape_of
from training_memory import peak, peaks
from training_step import (
    BASE,
    CACHED,
    CONTROL,
    PAPER,
    StepAndSolver,
    TrainingStep,
    variant,
)
from turns import (
    Parser,
    begin,
    measured,
    number,
    options,
    overhead_texts,
    save,
    seconds_text,
    show,
    take_turns,
    take_turns_in_parts,
)

SIZES: dict[str, int | None] = {"pairs": 40, "threads": 2, "accumulate": 1, "paper-rounds": 3}
NAMES = (*VARIANTS, PAPER, CACHED, *peers.SETTINGS)
STATE_BYTES = 12  # of a weight and its two moments in AdamW; gradients are freed after each step
RESERVE = 4.5e9  # for gradients and activations of one step (4 GB for BERT-base) and libraries


@dataclass
class Row:
    """What was measured of a variant."""

    against: str
    base: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    solver: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"against": self.against}
        if self.evaluations:
            facts["evaluations"] = median(self.evaluations)
        if self.solver:
            facts["solver_seconds"] = median(self.solver)
            facts["solver_share"] = median(self.solver) / median(self.times)
        return measured(self.base, self.times, **facts)


# --- time ---


class Timing:
    """Runs the rounds of one command line."""

    def __init__(self, shape: Shape, arguments: argparse.Namespace) -> None:
        self._shape, self._arguments = shape, arguments
        self.rows: dict[str, Row] = {}

    def run(self, names: Sequence[str]) -> None:
        for group in self._groups([n for n in names if n in VARIANTS]):
            self._together(group)
        foreign = [name for name in names if name in peers.SETTINGS]
        if foreign:
            self._together(list(dict.fromkeys((peers.BASE, *foreign))))
        if PAPER in names or CACHED in names:
            self._paper()

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Split the variants so that each group fits the memory with its two untouched models."""
        if not names:
            return []
        weights = sum(parameter.numel() for parameter in build(self._shape).parameters())
        room = (1e9 * self._arguments.gigabytes - RESERVE) / (STATE_BYTES * weights)
        size = max(1, int(room) - 2)
        others = [name for name in names if name not in (BASE, CONTROL)]
        chunks = [others[i : i + size] for i in range(0, len(others), size)] or [[]]
        return [[BASE, CONTROL, *chunk] for chunk in chunks]

    def _batches(self) -> list[Batch]:
        return [batch(self._shape) for _ in range(self._arguments.accumulate)]

    def _together(self, names: Sequence[str]) -> None:
        """Measure some variants in the same rounds; the first is what they are compared with."""
        steps = {name: StepAndSolver(variant(name, self._shape)) for name in names}
        parts = {name: step.parts for name, step in steps.items()}
        times = take_turns_in_parts(self._arguments.pairs, parts, self._batches)
        for name in names:
            row = self.rows.setdefault(name, Row(names[0]))
            row.base += times[BASE] if name == CONTROL else _baseline(times, names)
            row.times += times[name]
            if steps[name].step.flows:
                row.evaluations += steps[name].step.evaluations[1:]
                row.solver += steps[name].solver[1:]
        steps.clear()
        gc.collect()

    def _paper(self) -> None:
        """Measure the paper's way, and the same model while it keeps its table."""
        model = build(self._shape)
        VARIANTS["flow"](model, self._shape)
        flows = solve_as_the_paper(model)
        plain, paper = TrainingStep(build(self._shape)), TrainingStep(model)

        def solving(batches: list[Batch]) -> float:
            for flow in flows:
                flow.solve_always()
            return paper(batches)

        def keeping(batches: list[Batch]) -> float:
            for flow in flows:
                flow.keep(self._shape.length)
            return paper(batches)

        variants: dict[str, Callable[[list[Batch]], float]]
        variants = {BASE: plain, "kept": keeping, PAPER: solving}
        times = take_turns(self._arguments.paper_rounds, variants, self._batches)
        pairs = list(zip(times[PAPER], times["kept"], strict=True))
        extra = [solved - kept for solved, kept in pairs]
        counts = [count for count in paper.evaluations if count]
        self.rows[PAPER] = Row(BASE, times[BASE], times[PAPER], counts, extra)
        cached = [(solved + (KEEP_FOR - 1) * kept) / KEEP_FOR for solved, kept in pairs]
        shared = [seconds / KEEP_FOR for seconds in extra]
        self.rows[CACHED] = Row(BASE, times[BASE], cached, [], shared)


def _baseline(times: Mapping[str, list[float]], names: Sequence[str]) -> list[float]:
    """Return what variants are compared with in each round: the mean of the two untouched models,
    which differ a little by where their weights lie in memory; or the first variant.
    """
    if CONTROL not in names:
        return times[names[0]]
    return [(one + other) / 2 for one, other in zip(times[BASE], times[CONTROL], strict=True)]


def report(arguments: argparse.Namespace, shape: Shape, rows: dict[str, Row]) -> None:
    """Print and save the times."""
    variants = {name: rows[name].summary() for name in NAMES if name in rows}
    save(arguments, "training", model=arguments.model, shape=asdict(shape), variants=variants)

    def cells(name: str, found: dict[str, Any]) -> list[str]:
        solver = ["", "", ""]
        if "solver_seconds" in found:
            evaluations = found.get("evaluations")
            solver = [
                "" if evaluations is None else f"{evaluations:,.0f}",
                seconds_text(found["solver_seconds"]),
                f"{100 * found['solver_share']:.2f} %",
            ]
        head = [name, str(found["rounds"]), seconds_text(found["seconds"])]
        return [*head, *overhead_texts(found), *solver]

    columns = ("variant", "rounds", "step", "overhead", "95 % interval")
    show(
        f"Training step, {arguments.model}, {arguments.accumulate} micro-batch(es)",
        (*columns, "evaluations", "solver", "share"),
        (cells(name, found) for name, found in variants.items()),
    )


# --- the command line ---


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = options("training", __doc__, {**SIZES, **dict.fromkeys(CHANGEABLE)})
    parser.add_argument("--model", required=True, choices=SHAPES)
    parser.add_argument("--variants", help=f"separated by commas: {', '.join(NAMES)}")
    parser.add_argument("--gigabytes", type=number(float, 1), default=12.0, help="memory to use")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args(given)
    if arguments.out is None:
        ending = "-memory" if arguments.memory else ""
        ending = f"-{arguments.accumulate}{ending}" if arguments.accumulate > 1 else ending
        arguments.out = Path(f"benchmarks/results/training-{arguments.model}{ending}.json")
    arguments.variants = _chosen(parser, arguments)
    return arguments


def _chosen(parser: Parser, arguments: argparse.Namespace) -> list[str]:
    """The variants to measure; those that cannot be or say nothing are left out with a line."""
    shape = SHAPES[arguments.model]
    chosen = arguments.variants.split(",") if arguments.variants else NAMES
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        parser.error(f"argument --variants: must be of {', '.join(NAMES)}, but has {unknown[0]!r}")
    reasons = {
        name: "torchdiffeq is not installed" for name in (PAPER, CACHED) if not paper_flow.INSTALLED
    }
    for name in peers.SETTINGS:
        if not peers.INSTALLED:
            reasons[name] = "x-transformers is not installed"
        elif shape.kind == "marian":
            reasons[name] = "it is measured for models of one stack"
    reasons |= {n: "the flow is rotary there already" for n in VARIANTS if not sensible(n, shape)}
    for name in chosen:
        if name in reasons:
            print(f"training.py: {name} is left out: {reasons[name]}.", file=sys.stderr)
    return [name for name in chosen if name not in reasons]


def main(given: Sequence[str] | None = None) -> int:
    arguments = parse(given)
    shape = shape_of(arguments)
    out = None if arguments.peak else arguments.out
    begin(arguments.threads, out, keep_memory=not (arguments.memory or arguments.peak))
    if arguments.peak:
        print(peak(arguments, shape))
    elif arguments.memory:
        peaks(Path(__file__), arguments, shape)
    else:
        timing = Timing(shape, arguments)
        timing.run(arguments.variants)
        report(arguments, shape, timing.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
