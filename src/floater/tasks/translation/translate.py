"""`floater translate`: a file or standard input, line by line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ...errors import DataError
from ...files import read_lines, write_text
from ...room import check_output
from .evaluation import load


def translate(
    path: Path,
    source: Path | None,
    output: Path | None,
    beam: int | None,
    window: int,
    model: Path | None,
    beyond: str = "",
) -> None:
    """Translate a file or standard input.

    Args:
        path: the run folder.
        source: the file; standard input if None.
        output: where to write; standard output if None.
        beam: beam width; the run's if None.
        window: number of lines that are sorted by length and translated together.
        model: a folder of other weights than the run's.
        beyond: what happens to sources longer than any in training; as in the run if empty.
    """
    if output is not None:
        check_output(output, "--output", source)
    translator = load(path, model, beyond)
    if beam is not None:
        translator.config = translator.config.model_copy(update={"beam": beam})
    lines = _decoded(sys.stdin.buffer) if source is None else iter(read_lines(source))
    translations = translator.stream(lines, window=window)
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in translations))
        return
    for line in translations:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _decoded(stream: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"Standard input, line {number}: must be UTF-8, but {error.reason} (byte "
                f"{error.start})."
            ) from None
