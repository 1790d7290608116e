"""The command line: typed functions become commands."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .errors import ArgumentError, FloaterError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"floater {version('floater-transformers')}")
        raise typer.Exit


@app.callback()
def floater(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """FLOATER: position encodings as the solution of a learned ODE."""


Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.updates=100.")
]
Workers = Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and the page.")] = Path("demo"),
    updates: Annotated[int, typer.Option(min=2, help="Updates of each translator.")] = 700,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each model when updates are timed.")] = 12,
    workers: Workers = 2,
    again: Annotated[bool, typer.Option("--again", help="Train anew where the folder holds an earlier demo.")] = False,
) -> None:
    """Train four translators on embedded data, test them far beyond the lengths they saw, and write a page about it."""
    from .experiments.demo import demo  # noqa: PLC0415  (torch is slow to import)

    demo(out, console, updates=updates, rounds=rounds, workers=workers, again=again)


@app.command()
def reproduce(
    item: Annotated[str, typer.Argument(help="capabilities, nmt, s2l, rnn, heatmaps or efficiency.")],
    scale: Annotated[str, typer.Option(help="smoke (embedded data), small (files, up to an hour) or paper (GPUs).")] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder of all reproductions.")] = Path("reproductions"),
    seeds: Annotated[str, typer.Option(help="Seeds of the runs, e.g. 0,1,2.")] = "0",
    arms: Annotated[str, typer.Option(help="Arms to run, e.g. sinusoidal,flow-blocks; all unless given.")] = "",
    workers: Workers = 2,
    check: Annotated[bool, typer.Option("--check", help="Resolve configs and build models without memory; train nothing.")] = False,
    override: Overrides = None,
) -> None:
    """Reproduce a table or figure of the paper. A run that was stopped goes on; finished ones are kept."""
    from .experiments import reproduce as machine  # noqa: PLC0415  (torch is slow to import)

    machine.reproduce(
        item,
        scale,
        out,
        seeds=_seeds(seeds),
        workers=workers,
        console=console,
        keys=[key for key in arms.split(",") if key],
        overrides=override or [],
        check_only=check,
    )


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"`--seeds` must be whole numbers with commas between, but is {text!r}.") from None
    if len(set(found)) < len(found):
        raise ArgumentError(f"`--seeds` must differ from each other, but are {text}.")
    return found


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A config file, such as configs/translation/multi30k-sinusoidal.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name of the config> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier start of this run was stopped.")] = False,
    override: Overrides = None,
) -> None:
    """Train what a config describes, then average, evaluate and keep everything in a run folder."""
    from .tasks import task_of  # noqa: PLC0415  (torch is slow to import)

    task = task_of(config, override or [])
    task.train(out or Path("runs") / config.stem, resume=resume, console=Console(stderr=True))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    source: Annotated[
        Path | None, typer.Option(help="Source sentences, one a line (.gz works); the run's test set unless given.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Their references.")] = None,
    length_bins: Annotated[str, typer.Option(help="Edges of bins of source length in tokens, e.g. 80,100,120,140.")] = "",
    paper_bleu: Annotated[bool, typer.Option("--paper-bleu", help="Also the paper's tokenised BLEU.")] = False,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the beam; the run's unless given.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another run: paired bootstrap of this one against it.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Weights to use instead of the run's, e.g. from `floater average --out`.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name under which predictions and scores are kept; that of the file unless given.")
    ] = "",
) -> None:
    """Translate a test set and score it."""
    from .tasks.translation import commands  # noqa: PLC0415

    commands.evaluate(run, source, target, length_bins, paper_bleu, beam, against, name, model, console)


@app.command()
def translate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    input: Annotated[Path | None, typer.Option(help="File to translate, one sentence a line; standard input unless given.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write; standard output unless given.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the beam; the run's unless given.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Lines that are sorted by length and translated together.")] = 1000,
    model: Annotated[
        Path | None, typer.Option(help="Weights to use instead of the run's, e.g. from `floater average --out`.")
    ] = None,
) -> None:
    """Translate lines; order and empty lines are kept."""
    from .tasks.translation import commands  # noqa: PLC0415

    commands.translate(run, input, output, beam, window, model)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for the averaged model; the run's own model unless given.")] = None,
) -> None:
    """Average the weights of the last checkpoints of a run."""
    from .tasks.translation import commands  # noqa: PLC0415

    console.print(f"wrote {commands.average(run, last, out)}", highlight=False)


def main() -> None:
    """Entry point: mistakes of the user end in one line and exit code 2."""
    started = time.perf_counter()
    try:
        app()
    except FloaterError as error:
        typer.echo(f"floater: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"floater: {error.filename or 'a file'} cannot be used: {error.strerror or error}.", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo(f"floater: stopped after {time.perf_counter() - started:.0f} s.", err=True)
        sys.exit(130)
