"""Compare sizes with the machine's memory before anything is allocated."""

from __future__ import annotations

import os

from .errors import ArgumentError

_SHARE = 0.5
"""Of the machine's memory, what one table or network may take."""


def memory() -> int | None:
    """Bytes of physical memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def check_room(size: int, what: str, advice: str, error: type[ArgumentError] = ArgumentError) -> None:
    """Raise if something would take more than half of this machine's memory.

    Args:
        size: its bytes.
        what: its name in the message.
        advice: what to do, the end of the message.
        error: the class to raise.
    """
    total = memory()
    if total is not None and size > _SHARE * total:
        raise error(f"{what} would take {size / 2**30:,.1f} GiB, but this machine has {total / 2**30:,.1f} GiB; {advice}")
