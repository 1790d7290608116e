"""Text on a console as it is: names of files may look like markup."""

from __future__ import annotations

from rich.console import Console


def print_text(console: Console, text: str, *, wrap: bool = False) -> None:
    """Print text without markup and highlighting.

    Args:
        console: where to print.
        text: what to print.
        wrap: break long lines at the width of the console; paths must not be broken.
    """
    console.print(text, highlight=False, markup=False, soft_wrap=not wrap)
