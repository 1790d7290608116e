"""What the command line does with translation runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from ...errors import ArgumentError, DataError, RunError
from ...files import read_lines, write_text
from ...room import check_output
from ...training.locking import in_use
from ...training.records import RunFolder
from ...training.trainer import checkpoints
from . import corpus, evaluation, run
from .checking import check_inputs
from .config import Split, TranslationConfig
from .corpus import Pairs
from .preparing import settings


@dataclass(frozen=True)
class Translation:
    """A translation run that a config describes."""

    config: TranslationConfig

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        check_inputs(self.config, path)
        return run.train(self.config, path, resume=resume, console=console)


def evaluate(
    path: Path,
    source: Path | None,
    target: Path | None,
    length_bins: str,
    paper_bleu: bool,
    beam: int | None,
    against: Path | None,
    name: str,
    model: Path | None,
    console: Console,
) -> None:
    """Translate and score a test set; optionally compare with another run."""
    folder = RunFolder.existing(path)
    other = None if against is None else RunFolder.existing(against)
    pairs, label = _pairs(folder, source, target)
    label = name or label
    scores = evaluation.evaluate(
        folder,
        pairs,
        name=label,
        edges=_edges(length_bins),
        paper=paper_bleu,
        beam=beam,
        model=model,
    )
    console.print(evaluation.describe(scores), highlight=False)
    if other is None:
        return
    theirs = other.scored(label)
    if any(scores[key] != theirs.get(key) for key in ("data", "beam")):
        evaluation.evaluate(other, pairs, name=label, beam=beam)
    with in_use(folder.path, "evaluate", alone=False), in_use(other.path, "evaluate", alone=False):
        found = evaluation.compare(other, folder, label)
        folder.add_scores(f"{label} against {other.path.name}", found)
    console.print(
        f"against {against}: {found['difference']:+.2f} BLEU (95 % {found['low']:+.2f} to "
        f"{found['high']:+.2f}, p = {found['p_value']:.3f}; {found['signature']})",
        highlight=False,
        markup=False,
    )


def _pairs(folder: RunFolder, source: Path | None, target: Path | None) -> tuple[Pairs, str]:
    config, _ = settings(folder.path)
    if (source is None) != (target is None):
        raise ArgumentError("`--source` and `--target` belong together, but only one was given.")
    if source is not None:
        data = config.data.model_copy(
            update={"hub": None, "embedded": None, "test": Split(source=source, target=target)}
        )
        found = corpus.load(data, "test")
        assert found is not None
        return found, source.name.removesuffix(".gz").rsplit(".", 1)[0]
    found = evaluation.test_pairs(config, folder)
    if found is None:
        raise DataError(
            f"The config of {folder.path} names no test set; give --source and --target."
        )
    return found, "test"


def _edges(text: str) -> list[int]:
    if not text:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"`--length-bins` must be whole numbers with commas between, but is {text!r}."
        ) from None


def translate(
    path: Path,
    source: Path | None,
    output: Path | None,
    beam: int | None,
    window: int,
    model: Path | None,
) -> None:
    """Translate a file or standard input."""
    if output is not None:
        check_output(output, "--output", source)
    config, translator = evaluation.load(path, model)
    if beam is not None:
        translator.config = config.decoding.model_copy(update={"beam": beam})
    lines = _typed(sys.stdin.buffer) if source is None else iter(read_lines(source))
    made = translator.stream(lines, window=window)
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in made))
        return
    for line in made:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _typed(stream: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"Standard input, line {number}: must be UTF-8, but {error.reason} (byte "
                f"{error.start})."
            ) from None


def average(path: Path, last: int, out: Path | None) -> Path:
    """Average the last checkpoints of a run."""
    folder = RunFolder.existing(path)
    with in_use(path, "average"):
        found = checkpoints(folder.checkpoints)
        if len(found) < last:
            raise RunError(
                f"{path} holds {len(found)} checkpoints, but {last} are to be averaged; give --last"
                f" {max(len(found), 1)}."
            )
        return evaluation.average_run(folder, found[-last:], out)
