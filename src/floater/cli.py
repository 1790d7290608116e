"""The command line: typed functions become commands."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("demo"),
    length: Annotated[int, typer.Option(min=2, help="Positions to solve for.")] = 256,
    dim: Annotated[int, typer.Option(min=2, help="Size of an encoding; 512 is a Transformer-base.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Solve the trajectories of a Transformer-base, draw every encoding, and check what each can do."""
    from .experiments.encodings import solve_transformer_base, tour  # noqa: PLC0415  (torch is slow to import)

    console.print("[bold]FLOATER[/bold]: a position encoding is a path; here its law of motion dp/dt = h(t, p) is learned.\n")
    with console.status("solving 18 trajectories (q, k, v of 6 blocks) …"):
        solved = solve_transformer_base(length, dim, seed)
    console.print(
        f"1. Solved dp/dt = h(t, p) for 18 trajectories of {dim} dimensions at {length} positions: "
        f"{solved.evaluations} evaluations of h in {solved.steps} steps, "
        f"{solved.forward_ms:.0f} ms forward and {solved.backward_ms:.0f} ms backward (median of {solved.repeats}).\n"
        f"   Largest |p|: {solved.largest:.2f}. Asking for {2 * length} positions re-used every step: "
        f"{solved.more_evaluations} more evaluations, first half equal to the bit: {solved.prefix_equal}.\n"
    )
    console.print("2. What each encoding can do (every cell is the outcome of a check that just ran):")
    table = Table(caption="small: as many parameters for twice the length; of h: without the starting points p(0)")
    for heading in ("encoding", "inductive", "learned", "small", "weights", "of h"):
        table.add_column(heading, justify="right" if heading in ("weights", "of h") else "left", no_wrap=True)
    steps = tour(length, dim, seed)
    rows = list(track(steps, description="   checking", console=console, transient=True, total=len(steps)))
    mark = {True: "[green]yes[/green]", False: "[red]no[/red]"}
    for row in (row.capability for row in rows):
        table.add_row(
            row.name,
            mark[row.inductive],
            mark[row.data_driven],
            mark[row.parameter_efficient],
            f"{row.parameters:,}",
            f"{row.shared_parameters:,}",
        )
    console.print(table)
    from .report.figures import heat_maps  # noqa: PLC0415

    path = heat_maps(
        {row.capability.name: row.encodings for row in rows if row.encodings is not None},
        out / "encodings.png",
        as_is=[row.capability.name for row in rows if row.capability.name.startswith("Sinusoidal")],
        title=f"Position encodings before training ({length} positions × {dim} dimensions, first site)",
    )
    console.print(f"\n3. Heat maps of the encodings, as they are before any training: [bold]{path}[/bold]")


Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.updates=100.")
]


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
def compare(
    configs: Annotated[list[Path], typer.Argument(help="Config files of understanding tasks, such as configs/glue/small/*.yaml.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the table.")] = Path("runs/compare"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds; finished runs stay.")] = False,
    override: Overrides = None,
) -> None:
    """Train the untouched model and the same one with FLOATER, with the same data, settings and seeds, and compare them."""
    from .tasks.compare import compare_configs  # noqa: PLC0415

    console.print(compare_configs(configs, override or [], out, resume=resume, console=Console(stderr=True)), highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        Path | None, typer.Option(help="Understanding: a file of the task's layout; the run's own sets unless given.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Translation: source sentences, one a line (.gz works); the run's test set unless given.")
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
    """Predict a test set and score it."""
    from .tasks import task_of_run  # noqa: PLC0415
    from .tasks.understanding.commands import Understanding  # noqa: PLC0415

    task = task_of_run(run)
    only = {"--source": source, "--target": target, "--length-bins": length_bins, "--paper-bleu": paper_bleu, "--beam": beam}
    if isinstance(task, Understanding):
        wrong = [option for option, value in only.items() if value]
        if wrong:
            raise ArgumentError(f"`{wrong[0]}` belongs to translation, but {run} is a run of {task.config.task}; use --data.")
        task.evaluate(run, data, against=against, name=name, model=model, console=console)
        return
    if data is not None:
        raise ArgumentError(f"`--data` belongs to understanding tasks, but {run} is a translation run; use --source and --target.")
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
