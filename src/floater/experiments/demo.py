"""`floater demo`: what FLOATER is and whether its claims hold, measured within minutes on embedded
data.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from ..errors import RunError
from ..report.figures import line_chart
from ..report.page import write_report
from ..runs.folder import CONFIG, RunFolder
from ..runs.results import Cell, Results, Table
from ..tasks.translation.config import TranslationConfig
from ..tasks.translation.embedded import Embedded, generate
from . import capabilities, heatmaps, pretrained
from .result_tables import bins, by_length, fact, score, show
from .s2l import leaders, twice_table
from .scheduler import Runs, run_all
from .step_timing import Cost, step_costs
from .variants import Variant, embedded

VARIANTS = [
    Variant("sinusoidal", "sinusoidal"),
    Variant("flow-blocks", "flow"),
    Variant("learned", "learned"),
    Variant("recurrent", "recurrent"),
]
SEED = 0
EDGES = [40, 60, 80, 120]
"""Bins of source length; training sources end before the first edge."""
LONGEST = 16
"""Items of the longest test lines; training lines have up to three."""


def settings(updates: int) -> dict[str, dict[str, Any]]:
    """Settings of each variant: small translators of short lists of numbers, dates and times,
    tested on long ones.
    """
    changes = {
        "data": {
            "embedded": {
                "train": {"pairs": 20_000, "longest": 3},
                "valid": {"pairs": 50, "longest": 3},
                "test": {"pairs": 320, "longest": LONGEST},
            },
            "max_source_tokens": EDGES[0] - 1,
        },
        "vocabulary": {"size": 600},
        "model": {"layers": 2, "dim": 64, "feed_forward": 256, "heads": 4},
        "training": {
            "updates": updates,
            "batch_tokens": 2048,
            "lr": 0.004,
            "warmup": 100,
            "evaluate_every": min(350, updates),
            "save_every": min(
                100, updates
            ),  # the same for any longer demo, so that it can go on from a shorter one
            "log_every": 10,
        },
        "decoding": {"length_bins": EDGES},
    }
    return {variant.key: embedded(variant.key, **changes) for variant in VARIANTS}


def demo(
    out: Path, console: Console, *, updates: int, rounds: int, workers: int, again: bool
) -> Results:
    """Train, test, time, draw, attach to a pretrained model, and write a page.

    Args:
        out: folder for runs, figures and the page.
        console: where to tell what happens.
        updates: of each translator.
        rounds: turns of each model when updates are timed, and of the pretrained model.
        workers: translators that are trained at a time.
        again: train anew where the folder holds the runs of an earlier demo.
    """
    begun = time.perf_counter()
    torch.set_flush_denormal(True)
    made = settings(updates)
    console.print(
        "[bold]FLOATER[/bold]: a position encoding is a path through space; here its dynamics,"
        " dp/dt = h(t, p), is learned.\nCan a Transformer with such positions translate lists that "
        "are longer than any it was trained on?\n",
        markup=True,
    )
    _show_examples(made["sinusoidal"], console)
    if again:
        _forget(out)
    console.print(
        f"\n[bold]1. Training[/bold] {len(VARIANTS)} small translators that differ in their"
        f" positions alone, {updates} updates each, {workers} at a time, and testing each on lists"
        f" of up to {LONGEST} items.",
        highlight=False,
        markup=True,
    )
    runs = run_all(VARIANTS, made, [SEED], out, workers=workers, console=console)
    console.print(
        "\n[bold]2. Timing[/bold] updates of all four in turn, in one process.",
        highlight=False,
        markup=True,
    )
    configs = {key: TranslationConfig(**found) for key, found in made.items()}
    costs = step_costs(configs, runs[VARIANTS[0].key][0], rounds=rounds, console=console)
    results = _results(runs, costs)
    console.print("\n[bold]3. What was measured[/bold]", highlight=False, markup=True)
    show(results, console)
    console.print(
        "\n[bold]4. Attaching[/bold] a flow to a pretrained model.", highlight=False, markup=True
    )
    line = _pretrained(rounds, console)
    console.print(line, highlight=False, markup=False)
    results = results.model_copy(update={"summary": [*results.summary, line]})
    _draw(results, runs, out, console)
    results.write(out)
    write_report([out], out / "report.html", title="FLOATER: the demo")
    seconds = time.perf_counter() - begun
    console.print(
        f"   the page with all of it: [bold]{escape(str(out / 'report.html'))}[/bold] "
        f" ({seconds:.0f} s)",
        highlight=False,
        markup=True,
        soft_wrap=True,
    )
    return results


def _show_examples(made: dict[str, Any], console: Console) -> None:
    config = Embedded(**made["data"]["embedded"])
    for part in ("train", "test"):
        lines = generate(
            config.model_copy(
                update={part: getattr(config, part).model_copy(update={"pairs": 20})}
            ),
            part,
            "en",
            "de",
        )
        chosen = (min if part == "train" else max)(
            zip(*lines, strict=True), key=lambda pair: abs(len(pair[0]) - 60)
        )
        words = (
            "trained on lists of 1 to 3 items"
            if part == "train"
            else f"tested on lists of up to {LONGEST}"
        )
        console.print(
            f"   {words}:\n     {_cut(chosen[0])}\n     → {_cut(chosen[1])}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _cut(text: str, width: int = 110) -> str:
    return text if len(text) <= width else f"{text[:width]} …"


def _forget(out: Path) -> None:
    """Remove the runs of an earlier demo, and nothing else."""
    for variant in VARIANTS:
        folder = out / f"{variant.key}-seed{SEED}"
        if folder.exists():
            if not (folder / CONFIG).is_file():
                raise RunError(
                    f"{folder} must be the run of an earlier demo (with {CONFIG}), but is not; "
                    "choose another --out."
                )
            shutil.rmtree(folder)


def _results(runs: Runs, costs: dict[str, Cost]) -> Results:
    labels = bins(runs)
    rows: list[list[Cell]] = []
    for variant in VARIANTS:
        found = runs[variant.key]
        cells = [_both(found[0], label) for label in labels]
        overhead = (
            "–" if variant is VARIANTS[0] else f"{100 * (costs[variant.key].ratio - 1):+.0f} %"
        )
        seconds = round(found[0].facts()["training_seconds"])
        rows.append([variant.name, *cells, fact(found, "position_parameters"), seconds, overhead])
    table = Table(
        title="BLEU/exact match in %, by source length in tokens",
        note=(
            f"English → German, trained on sources under {EDGES[0]} tokens, tested on "
            f"{sum(labels.values())} lines ({', '.join(map(str, labels.values()))}). Weights: of "
            "positions; sec: of training; cost: time of an update relative to sinusoidal, "
            "measured in turn. One seed."
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
        tables=[table, twice_table(VARIANTS, runs), capabilities.table(64)],
        figures=[
            by_length(VARIANTS, runs, "bleu", "BLEU by source length", "BLEU"),
            by_length(VARIANTS, runs, "exact", "Exact match", "%"),
        ],
        summary=summary,
        runs=[run.path.name for found in runs.values() for run in found],
    )


def _both(run: RunFolder, label: str) -> str:
    bleu, exact = score(run, "bleu", label), score(run, "exact", label)
    return "–" if bleu is None or exact is None else f"{bleu:.1f}/{exact:.0f}"


def _pretrained(rounds: int, console: Console) -> str:
    folder = pretrained.find()
    if folder is None:
        return (
            f"   This part is left out: the package {pretrained.PACKAGE} is not installed (`make "
            "demo` installs it)."
        )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("   timing", total=4 * rounds)
        found = pretrained.attach_to_pretrained(folder, 4 * rounds, lambda: bar.advance(task))
    same = "equal to the bit" if found.unchanged else "NOT equal"
    return (
        f"   all-MiniLM-L6-v2 with a fresh flow at {found.sites} sites ({found.parameters:,} "
        f"parameters): outputs {same}. Baked, with encodings that are not zero, it takes "
        f"{100 * found.overhead:+.1f} % time (untouched against itself: "
        f"{100 * found.control:+.1f} %)."
    )


def _draw(results: Results, runs: Runs, out: Path, console: Console) -> None:
    console.print("\n[bold]5. Drawing[/bold]", highlight=False, markup=True)
    figure = line_chart(results.figures[0], out / "short-to-long.png")
    tables = {variant.name: heatmaps.first_site(runs[variant.key][0].path) for variant in VARIANTS}
    maps = heatmaps.draw(tables, out / "encodings.png", "Trained position encodings (first site)")
    said = f"   short to long: {figure}\n   heat maps of the encodings: {maps}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)
