"""`floater reproduce`: one command for each table and figure of the paper, at three scales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from ..errors import ArgumentError, RunError
from ..report.lines import line_chart
from ..report.page import write_report
from ..report.results import Results
from ..training.start import on_cpu
from .arms import SCALES
from .capabilities import Capabilities
from .checking import check
from .efficiency import Efficiency
from .heatmaps import HeatMaps
from .item import Item, Order
from .nmt import Translation
from .rnn import Recurrent
from .s2l import ShortToLong
from .tables import show

ITEMS: dict[str, Item] = {
    item.name: item for item in (Capabilities(), Translation(), ShortToLong(), Recurrent(), HeatMaps(), Efficiency())
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
    """Run an item at a scale, print its tables, and write `results.json`, figures and a page into `out/ITEM-SCALE`.

    Args:
        name: which item.
        scale: smoke, small or paper.
        out: folder of all reproductions.
        seeds: of the runs.
        workers: runs at a time.
        console: where to tell what happens.
        keys: arms to run; all unless given.
        overrides: settings to change in config files.
        check_only: resolve all configs and build all models at full size without memory, and train nothing.
    """
    if name not in ITEMS:
        raise ArgumentError(f"The item must be one of {', '.join(ITEMS)}, but is {name!r}.")
    known = next((one for one in SCALES if one == scale), None)
    if known is None:
        raise ArgumentError(f"`--scale` must be one of {', '.join(SCALES)}, but is {scale!r}.")
    item = ITEMS[name]
    order = Order(known, out / f"{name}-{scale}", seeds, workers, console, keys, overrides)
    if check_only:
        show(check(item, order), console)
        return None
    if scale == "paper" and item.configs(known, order) and on_cpu():
        raise RunError(
            f"The scale paper trains Transformer-base for days on GPUs, but this machine has none; `floater reproduce {name} "
            "--scale paper --check` builds everything without training, and --scale small runs here."
        )
    threads = torch.get_num_threads()
    try:
        results = item.reproduce(order)
    finally:
        torch.set_num_threads(threads)
    results.write(order.folder)
    show(results, console)
    for number, figure in enumerate(results.figures):
        console.print(f"drew {line_chart(figure, order.folder / f'figure-{number + 1}.png')}", highlight=False)
    write_report([order.folder], order.folder / "report.html")
    console.print(f"wrote {order.folder / 'results.json'} and {order.folder / 'report.html'}", highlight=False)
    return results
