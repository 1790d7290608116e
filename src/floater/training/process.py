"""Settings of the whole process while a run trains."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from transformers.utils import logging

from ..errors import RangeWarning


def on_cpu() -> bool:
    """Whether this machine trains on its CPU."""
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


def main_console(console: Console | None) -> Console:
    """A console for the main process; the others print nothing."""
    if os.environ.get("RANK", "0") != "0":
        return Console(quiet=True)
    return console or Console(stderr=True, markup=False)


@contextmanager
def process_settings(threads: int | None = None) -> Iterator[None]:
    """Set the number of threads, flush denormals and hide the progress bars of transformers, which
    would break ours. All of it is restored at the end.

    Args:
        threads: torch's threads; unchanged if None.
    """
    before = torch.get_num_threads(), _flushes_denormals(), logging.is_progress_bar_enabled()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_flush_denormal(before[1])
        if before[2]:
            logging.enable_progress_bar()


@contextmanager
def expecting_long_inputs(expecting: bool = True) -> Iterator[None]:
    """Inside, no warning says that a model is used past its range of training: a run is measured
    on the data that its config names, whatever their lengths.

    Args:
        expecting: whether to do that.
    """
    with warnings.catch_warnings():
        if expecting:
            warnings.simplefilter("ignore", RangeWarning)
        yield


def _flushes_denormals() -> bool:
    """torch has no way to ask, so multiply the smallest denormal number by one.

    It is made from its bits: Python reads the literal 5e-324 as 0 while denormals are flushed.
    """
    return bool((torch.ones(1, dtype=torch.int64).view(torch.float64) * 1.0 == 0).all())
