"""The command line of `python -m torture`."""

from __future__ import annotations

import argparse
import sys

import torch

from . import __doc__ as description
from .cases import FAILURES
from .families import FAMILIES, table, torture


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="torture",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=570, help="time limit in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of all random draws (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=list(FAMILIES),
        help="a family of cases; may be repeated (default: all)",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = torture(options.seconds, options.seed, options.only)
    print(table(counts))
    failed = sum(number for (_, outcome), number in counts.items() if outcome in FAILURES)
    total = sum(counts.values())
    print(f"{total - failed} passed, {failed} failed")
    sys.exit(1 if failed or not total else 0)


if __name__ == "__main__":
    main()
