"""`floater reproduce`: one command for each table and figure of the paper, at three scales."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from ..errors import ArgumentError, RunError
from ..report.figures import line_chart
from ..report.page import write_report
from ..runs.results import Results
from ..training.process import on_cpu
from .base import Item, Request
from .capabilities import Capabilities
from .efficiency import Efficiency
from .heatmaps import HeatMaps
from .nmt import TranslationTable
from .result_tables import show
from .rnn import RecurrentTable
from .s2l import ShortToLong
from .understanding import GlueTable, RaceTable, SquadTable
from .variants import SCALES

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        *(Capabilities(), TranslationTable(), GlueTable(), RaceTable(), SquadTable()),
        *(ShortToLong(), RecurrentTable(), HeatMaps(), Efficiency()),
    )
}
"""What can be reproduced; a new item is a file and an entry here."""


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
    """Run an item at a scale, print its tables, and write `results.json`, figures and a page into
    `out/ITEM-SCALE`.

    Args:
        name: which item.
        scale: smoke, small or paper.
        out: folder of all reproductions.
        seeds: of the runs.
        workers: runs at a time; one at the scale paper, which takes all GPUs.
        console: where to tell what happens.
        keys: variants to run; all unless given.
        overrides: settings to change, as `training.updates=100`.
        check_only: resolve all configs and build all models at full size without memory, and train
            nothing.
    """
    if name not in ITEMS:
        raise ArgumentError(f"The item must be one of {', '.join(ITEMS)}, but is {name!r}.")
    known = next((one for one in SCALES if one == scale), None)
    if known is None:
        raise ArgumentError(f"`--scale` must be one of {', '.join(SCALES)}, but is {scale!r}.")
    item = ITEMS[name]
    request = Request(
        known,
        out / f"{name}-{scale}",
        seeds,
        1 if scale == "paper" else workers,
        console,
        keys,
        overrides,
    )
    if check_only:
        found = item.check(request)
        if found is None:
            console.print(
                f"{item.title}: trains nothing, so there is nothing to check",
                highlight=False,
                markup=False,
            )
        else:
            show(found, console)
        return None
    if scale == "paper" and item.trains is not None and on_cpu():
        raise RunError(
            f"The scale paper trains {item.trains} for days on GPUs, but this machine has none; "
            f"`floater reproduce {name} --scale paper --check` builds everything without training, "
            "and --scale small runs here."
        )
    if (
        os.environ.get("RANK", "0") != "0"
    ):  # under accelerate the first process tells what all of them trained
        item.follow(request)
        return None
    threads = torch.get_num_threads()
    try:
        results = item.reproduce(request)
    finally:
        torch.set_num_threads(threads)
    results.write(request.folder)
    show(results, console)
    for number, figure in enumerate(results.figures):
        console.print(
            f"drew {line_chart(figure, request.folder / f'figure-{number + 1}.png')}",
            highlight=False,
            markup=False,
        )
    write_report([request.folder], request.folder / "report.html")
    written = f"wrote {request.folder / 'results.json'} and {request.folder / 'report.html'}"
    console.print(written, highlight=False, markup=False, soft_wrap=True)
    return results
