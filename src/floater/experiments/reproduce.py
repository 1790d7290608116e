"""`floater reproduce`: the tables and figures of the paper, at three scales."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from ..errors import ArgumentError, RunError
from ..printing import print_text
from ..report.figures import line_chart
from ..report.page import write_report
from ..runs.results import Results
from ..training.process import on_cpu
from .base import Item, ReproductionRequest
from .capabilities import Capabilities
from .documents import DocumentsTable
from .efficiency import Efficiency
from .events import EventsTable
from .heatmaps import HeatMaps
from .masked import MaskedByPosition
from .nmt import TranslationTable
from .result_tables import show
from .rnn import RecurrentTable
from .s2l import AnyLength, ShortToLong
from .series import SeriesTable
from .understanding import GlueTable, RaceTable, SquadTable
from .variants import SCALES, Scale

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        Capabilities(),
        TranslationTable(),
        GlueTable(),
        RaceTable(),
        SquadTable(),
        ShortToLong(),
        AnyLength(),
        MaskedByPosition(),
        RecurrentTable(),
        HeatMaps(),
        Efficiency(),
        SeriesTable(),
        EventsTable(),
        DocumentsTable(),
    )
}
"""Everything that can be reproduced. To add an item, write a file and list it here."""


def reproduce(
    name: str,
    scale: str,
    out: Path,
    *,
    seeds: Sequence[int],
    workers: int,
    console: Console,
    keys: Sequence[str] = (),
    overrides: Sequence[str] = (),
    check_only: bool = False,
) -> Results | None:
    """Run an item, print its tables, and write results, figures and a report to `out/ITEM-SCALE`.

    Args:
        name: name of the item.
        scale: smoke, small or paper.
        out: folder for all reproductions.
        seeds: seeds of the runs.
        workers: number of runs at the same time; always 1 at the scale paper, where each run uses
            all GPUs.
        console: where to print progress and results.
        keys: keys of the variants to run; default: all.
        overrides: settings to change, such as `training.updates=100`.
        check_only: check the configs and count parameters without training.

    Returns:
        The results; None if nothing was run, or if this process has rank > 0.
    """
    if name not in ITEMS:
        raise ArgumentError(f"The item must be one of {', '.join(ITEMS)}, but is {name!r}.")
    item, checked_scale = ITEMS[name], _checked_scale(scale)
    folder = out / f"{name}-{scale}"
    if checked_scale == "paper":
        workers = 1
    request = ReproductionRequest(checked_scale, folder, seeds, workers, console, keys, overrides)
    if check_only:
        _check(item, request)
        return None
    if checked_scale == "paper" and item.trains is not None and on_cpu():
        raise RunError(
            f"The scale paper trains {item.trains} for days on GPUs, but this machine has none; "
            f"`floater reproduce {name} --scale paper --check` checks everything without "
            "training, and --scale small runs here."
        )
    if os.environ.get("RANK", "0") != "0":  # under accelerate, only rank 0 writes the results
        item.follow(request)
        return None
    threads = torch.get_num_threads()
    try:
        results = item.reproduce(request)
    finally:
        torch.set_num_threads(threads)
    _write(results, request)
    return results


def _checked_scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise ArgumentError(f"`--scale` must be one of {', '.join(SCALES)}, but is {name!r}.")


def _check(item: Item, request: ReproductionRequest) -> None:
    results = item.check(request)
    if results is None:
        print_text(request.console, f"{item.title}: nothing is trained, so nothing to check")
    else:
        show(results, request.console)


def _write(results: Results, request: ReproductionRequest) -> None:
    """Write and print results."""
    folder, console = request.folder, request.console
    results.write(folder)
    show(results, console)
    for number, figure in enumerate(results.figures, 1):
        print_text(console, f"wrote {line_chart(figure, folder / f'figure-{number}.png')}")
    write_report([folder], folder / "report.html")
    print_text(console, f"wrote {folder / 'results.json'} and {folder / 'report.html'}")
