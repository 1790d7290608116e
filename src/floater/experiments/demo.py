"""`floater demo`: the claims of FLOATER, measured within minutes on generated data."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress

from ..errors import RunError
from ..printing import print_text
from ..report.figures import line_chart
from ..report.page import write_report
from ..runs.folder import CONFIG, RunFolder
from ..runs.results import Cell, Results, Table
from ..tasks.translation.config import TranslationConfig
from ..tasks.translation.embedded import Embedded, generate
from . import capabilities, heatmaps, past_limit, pretrained
from .result_tables import by_length, fact, length_bins, score, show
from .s2l import leaders, twice_table
from .scheduler import Runs, run_all
from .series import PHASE_UPDATES, real_times
from .step_timing import Cost, step_costs
from .variants import Variant, embedded

VARIANTS = [
    Variant("sinusoidal", "sinusoidal"),
    Variant("rotary", "rotary"),
    Variant("sinusoidal-stretch", "sinusoidal, stretched"),
    Variant("rotating-stretch", "rotating flow, stretched"),
]
"""The last one is the recommended flow."""
EDGES = [40, 60, 80, 120]
"""Edges of the bins of source length; training sources are shorter than the first edge."""
MAX_TRAIN_ITEMS, MAX_TEST_ITEMS = 3, 16
"""Length of the longest lists in training and in the test."""


def settings(updates: int) -> dict[str, dict[str, Any]]:
    """Settings by variant: small models that translate lists of numbers, dates and times."""
    changes = {
        "data": {
            "embedded": {
                "train": {"pairs": 20_000, "longest": MAX_TRAIN_ITEMS},
                "valid": {"pairs": 50, "longest": MAX_TRAIN_ITEMS},
                "test": {"pairs": 900, "longest": MAX_TEST_ITEMS},
            },
            "max_source_tokens": EDGES[0] - 1,
        },
        "vocabulary": {"size": 600},
        "model": {"layers": 2, "dim": 64, "feed_forward": 256, "heads": 4},
        "training": {
            "updates": updates,
            "batch_tokens": 2048,
            "lr": 0.003,
            "warmup": 100,
            "evaluate_every": min(350, updates),
            # the same for all longer demos, so that a demo can be resumed with more updates
            "save_every": min(100, updates),
            "log_every": 10,
        },
        "decoding": {"length_bins": EDGES},
    }
    return {variant.key: embedded(variant.key, **changes) for variant in VARIANTS}


def demo(
    out: Path,
    console: Console,
    *,
    updates: int,
    rounds: int,
    workers: int,
    again: bool,
    seed: int = 0,
) -> Results:
    """Train short and test long, use real times, attach to a pretrained model, and write a report.

    Args:
        out: folder for runs, figures and the report.
        console: where to print progress and results.
        updates: number of updates of each model.
        rounds: number of rounds in which updates are timed.
        workers: number of runs at the same time.
        again: remove the runs of an earlier demo first.
        seed: of the translation models.
    """
    started = time.perf_counter()
    torch.set_flush_denormal(True)
    settings_by_key = settings(updates)
    _introduce(settings_by_key["sinusoidal"], console)
    if again:
        _remove_runs(out, seed)
    text = (
        f"{len(VARIANTS)} small translation models that differ only in their positions: {updates} "
        f"updates each, {workers} at the same time, then a test on lists of up to "
        f"{MAX_TEST_ITEMS} items."
    )
    _print_step(console, "1. Any length:", text)
    runs = run_all(VARIANTS, settings_by_key, [seed], out, workers=workers, console=console)
    configs = {key: TranslationConfig(**settings) for key, settings in settings_by_key.items()}
    costs = step_costs(configs, runs[VARIANTS[0].key][0], rounds=rounds, console=console)
    lengths = _results(runs, costs)
    show(lengths, console)
    text = (
        "two small models on waves that only real times tell apart, on real times and on indices."
    )
    _print_step(console, "2. Any spacing:", text)
    spacing, timed = real_times(out, console, updates=min(updates, PHASE_UPDATES), workers=workers)
    show(Results(item="demo", scale="smoke", title=spacing.title, tables=[spacing]), console)
    _print_step(
        console, "3. Any model:", "a flow attached to a pretrained model, which then reads further."
    )
    lines = [_attach_to_pretrained(rounds, console), *_read_past_limit()]
    for line in lines:
        print_text(console, f"   {line}", wrap=True)
    results = lengths.model_copy(
        update={
            "headline": [*lengths.headline, _spacing_line(spacing)],
            "summary": [*lengths.summary, *lines],
            "tables": [*lengths.tables, spacing],
            "runs": [*lengths.runs, *(run.path.name for run in timed)],
        }
    )
    _print_step(console, "4. Drawing", "")
    _draw(results, runs, out, console)
    results.write(out)
    write_report([out], out / "report.html", title="FLOATER: the demo")
    seconds = time.perf_counter() - started
    print_text(console, f"   report: {out / 'report.html'} ({seconds:.0f} s)")
    return results


def _print_step(console: Console, name: str, text: str) -> None:
    console.print(f"\n[bold]{name}[/bold] {text}", highlight=False, markup=True)


def _introduce(example: dict[str, Any], console: Console) -> None:
    console.print(
        "[bold]FLOATER[/bold]: position encodings follow the ODE dp/dt = h(t, p), whose dynamics h "
        "is learned.\nCan a Transformer with such encodings translate lists that are longer than "
        "those it was trained on?\n",
        markup=True,
    )
    config = Embedded(**example["data"]["embedded"])
    for text, (source, target) in {
        f"trained on lists of 1 to {MAX_TRAIN_ITEMS} items": _example(config, "train", min),
        f"tested on lists of up to {MAX_TEST_ITEMS} items": _example(config, "test", max),
    }.items():
        print_text(console, f"   {text}:\n     {_shorten(source)}\n     → {_shorten(target)}")


def _example(
    config: Embedded, split: Literal["train", "test"], choose: Callable[..., tuple[str, str]]
) -> tuple[str, str]:
    """The example whose length is closest to (min) or farthest from (max) 60 characters."""
    few = getattr(config, split).model_copy(update={"pairs": 20})
    lines = generate(config.model_copy(update={split: few}), split, "en", "de")
    return choose(zip(*lines, strict=True), key=lambda pair: abs(len(pair[0]) - 60))


def _shorten(text: str, width: int = 110) -> str:
    return text if len(text) <= width else f"{text[:width]} …"


def _remove_runs(out: Path, seed: int) -> None:
    """Remove the runs of an earlier demo with the same seed, and nothing else."""
    names = [f"{variant.key}-seed{seed}" for variant in VARIANTS]
    for name in (*names, "flow-input-seed0", "flow-index-seed0"):
        folder = out / name
        if folder.exists():
            if not (folder / CONFIG).is_file():
                raise RunError(
                    f"{folder} must be the run of an earlier demo (with {CONFIG}), but is not; "
                    "choose another --out."
                )
            shutil.rmtree(folder)


def _results(runs: Runs, costs: dict[str, Cost]) -> Results:
    labels = length_bins(runs)
    rows: list[list[Cell]] = []
    for variant in VARIANTS:
        (run,) = runs[variant.key]
        overhead = f"{100 * (costs[variant.key].ratio - 1):+.0f} %"
        rows.append(
            [
                variant.name,
                *(_bleu_and_exact(run, label) for label in labels),
                fact([run], "position_parameters"),
                round(run.facts()["training_seconds"]),
                "–" if variant is VARIANTS[0] else overhead,
            ]
        )
    table = Table(
        title="BLEU / exact match in %, by source length in tokens",
        note=(
            f"English → German, trained on sources of fewer than {EDGES[0]} tokens, tested on "
            f"{sum(labels.values())} lines ({', '.join(map(str, labels.values()))}). Weights: "
            "position parameters; sec: training time; cost: additional time of an update relative "
            "to sinusoidal. One seed."
        ),
        columns=["positions", *labels, "weights", "sec", "cost"],
        rows=rows,
    )
    summary = [
        *leaders(VARIANTS, runs, "bleu", "BLEU"),
        *leaders(VARIANTS, runs, "exact", "exact match in %")[:1],
    ]
    return Results(
        item="demo",
        scale="smoke",
        title="Short to long on numbers, dates and times",
        headline=_headline(runs),
        tables=[table, twice_table(VARIANTS, runs), capabilities.capability_table(64)],
        figures=[
            by_length(VARIANTS, runs, "bleu", "BLEU by source length", "BLEU"),
            by_length(VARIANTS, runs, "exact", "Exact match", "%"),
        ],
        summary=summary,
        runs=[run.path.name for (run,) in runs.values()],
    )


def _headline(runs: Runs) -> list[str]:
    """What the runs say about longer inputs, in two sentences of numbers."""
    near, *_, far, _ = length_bins(runs)
    usual, *_, stretched, best = VARIANTS

    def bleu(variant: Variant, label: str) -> str:
        value = score(runs[variant.key][0], "bleu", label)
        return "–" if value is None else f"{value:.0f}"

    return [
        f"Trained on fewer than {EDGES[0]} tokens and tested on {far}, a flow with times stretched "
        f"while training translates with BLEU {bleu(best, far)}. A sinusoid has "
        f"{bleu(usual, far)} as in the original Transformer, and {bleu(stretched, far)} at every "
        "block with stretched times.",
        f"At the lengths of training ({near} tokens) they have {bleu(best, near)}, "
        f"{bleu(usual, near)} and {bleu(stretched, near)}.",
    ]


def _spacing_line(table: Table) -> str:
    real, index = (f"{row[1]:.0f}" if isinstance(row[1], float) else "–" for row in table.rows)
    return (
        f"On waves sampled at irregular times, a flow on the real times is right in {real} %, and "
        f"on indices in {index} %, where chance is 50 %."
    )


def _bleu_and_exact(run: RunFolder, label: str) -> str:
    bleu, exact = score(run, "bleu", label), score(run, "exact", label)
    return "–" if bleu is None or exact is None else f"{bleu:.1f}/{exact:.0f}"


def _attach_to_pretrained(rounds: int, console: Console) -> str:
    folder = pretrained.find()
    if folder is None:
        return (
            f"This step is skipped: the package {pretrained.PACKAGE} is not installed (`make demo` "
            "installs it)."
        )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("   timing", total=4 * rounds)
        check = pretrained.attach_to_pretrained(folder, 4 * rounds, lambda: bar.advance(task))
    outputs = "identical to the bit" if check.unchanged else "NOT identical"
    return (
        f"all-MiniLM-L6-v2 with a fresh flow at {check.sites} sites ({check.parameters:,} "
        f"parameters): outputs are {outputs}. Time with a baked flow that is not zero: "
        f"{100 * check.overhead:+.1f} % (original model against itself: "
        f"{100 * check.control:+.1f} %)."
    )


def _read_past_limit() -> list[str]:
    """What the pretrained model finds at the end of long lists; nothing if it is not installed."""
    folder = pretrained.find()
    if folder is None:
        return []
    check = past_limit.read_past_limit(folder)
    return [
        f"The same model has {check.before} positions. {check.lists} lists of {check.tokens} tokens"
        f" and more begin with numbers and end with names of {check.kinds} kinds; a search for a "
        f"kind finds {100 * check.truncated:.0f} % right ones if the model reads what it can, and "
        f"{100 * check.extended:.0f} % if its table goes on to {check.after} positions, untrained "
        f"(by chance {100 / check.kinds:.0f} %). Outputs on short texts are "
        f"{'identical to the bit' if check.unchanged else 'NOT identical'}."
    ]


def _draw(results: Results, runs: Runs, out: Path, console: Console) -> None:
    figure = line_chart(results.figures[0], out / "short-to-long.png")
    tables = {
        variant.name: heatmaps.first_site(runs[variant.key][0].path)
        for variant in VARIANTS
        if variant.key != "rotary"  # rotates queries and keys, and has no encodings to draw
    }
    maps = heatmaps.draw(tables, out / "encodings.png", "Trained position encodings (first site)")
    print_text(console, f"   short to long: {figure}\n   heat maps of the encodings: {maps}")
