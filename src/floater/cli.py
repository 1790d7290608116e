"""The commands of `floater`.

Each command imports what it needs: torch is slow to import, and `--help` should not wait for it.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import cli_options as options
from .cli_errors import run_app
from .errors import ArgumentError, RunError
from .printing import print_text
from .room import check_folder, check_output

if TYPE_CHECKING:
    from .runs.encodings import Encodings

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console(markup=False)  # names of files may look like markup


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run_app(app))


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"floater {version('floater-transformers')}")
        raise typer.Exit


@app.callback()
def floater(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """FLOATER: position encodings as the solution of a learned ODE."""


@app.command()
def demo(
    out: options.DemoFolder = Path("demo"),
    updates: options.DemoUpdates = 1000,
    rounds: options.DemoRounds = 12,
    workers: options.Workers = 2,
    again: options.Again = False,
    seed: options.DemoSeed = 0,
) -> None:
    """Show any length, any spacing and any model within minutes, and write a report."""
    check_folder(out)
    from .experiments.demo import demo  # noqa: PLC0415

    demo(out, console, updates=updates, rounds=rounds, workers=workers, again=again, seed=seed)


@app.command()
def reproduce(
    item: options.ItemName,
    scale: options.ScaleName = "smoke",
    out: options.ReproductionsFolder = Path("reproductions"),
    seeds: options.Seeds = "0",
    variants: options.VariantKeys = "",
    workers: options.Workers = 2,
    check: options.CheckOnly = False,
    override: options.Overrides = None,
) -> None:
    """Reproduce a table or figure of the paper.

    Interrupted runs are resumed, and finished runs are not repeated.
    """
    check_folder(out)
    keys = [key for key in variants.split(",") if key]
    if variants and not keys:
        raise ArgumentError(f"`--variants` must be names separated by commas, but is {variants!r}.")
    if len(set(keys)) < len(keys):
        raise ArgumentError(f"`--variants` must differ from each other, but are {variants}.")
    from .experiments import reproduce as reproductions  # noqa: PLC0415

    reproductions.reproduce(
        item,
        scale,
        out,
        seeds=_parse_seeds(seeds),
        workers=workers,
        console=console,
        keys=keys,
        overrides=override or [],
        check_only=check,
    )


def _parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(number) for number in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"`--seeds` must be integers separated by commas, but is {text!r}."
        ) from None
    if min(seeds) < 0:
        raise ArgumentError(f"`--seeds` must not be negative, but are {text}.")
    if len(set(seeds)) < len(seeds):
        raise ArgumentError(f"`--seeds` must differ from each other, but are {text}.")
    return seeds


@app.command()
def train(
    config: options.ConfigFile,
    out: options.RunFolderToWrite = None,
    resume: options.Resume = False,
    override: options.Overrides = None,
) -> None:
    """Train the model that a config file describes, and evaluate it."""
    from .tasks import task_from_file  # noqa: PLC0415
    from .training.run import run  # noqa: PLC0415

    task = task_from_file(config, override or [])
    folder = out or Path("runs") / config.stem
    check_folder(folder)
    run(task, folder, resume=resume, console=Console(stderr=True, markup=False))


@app.command()
def compare(
    configs: options.ConfigFiles,
    out: options.ComparisonFolder = Path("runs/compare"),
    resume: options.ResumeComparison = False,
    override: options.Overrides = None,
) -> None:
    """Compare variants of a model: with and without FLOATER, or with other positions.

    All are trained with the same data, settings and seeds.
    """
    from .tasks.compare import compare_configs  # noqa: PLC0415

    check_folder(out)
    table = compare_configs(
        configs, override or [], out, resume=resume, console=Console(stderr=True, markup=False)
    )
    print_text(console, table)


@app.command()
def extend(
    model: options.PretrainedModel,
    length: options.NewLength,
    out: options.ExtendedFolder,
    text: options.TrainingText = None,
    valid: options.HeldOutText = None,
    scaling: options.ScalingName = "",
    train: options.TrainedWeights = "positions",
    updates: options.ExtensionUpdates = None,
    resume: options.ResumeComparison = False,
    override: options.Overrides = None,
) -> None:
    """Lead a pretrained model past the length it was built for."""
    check_folder(out)
    from .experiments.extension import extend_model  # noqa: PLC0415

    extend_model(
        model,
        length,
        out,
        text=text or [],
        valid=valid or [],
        scaling=scaling,
        part=train,
        updates=updates,
        overrides=override or [],
        resume=resume,
        console=console,
    )


@app.command()
def evaluate(
    run: options.RunPath,
    data: options.DataFile = None,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    length_bins: options.LengthBins = "",
    paper_bleu: options.PaperBleu = False,
    beam: options.Beam = None,
    against: options.Against = None,
    model: options.Weights = None,
    name: options.SetName = "",
    beyond: options.Beyond = "",
    labels: options.LabelsFile = None,
    unit: options.UnitName = "",
) -> None:
    """Evaluate a trained model on a test set."""
    from .runs.folder import RunFolder  # noqa: PLC0415
    from .tasks import task_of_run  # noqa: PLC0415
    from .training.task import EvaluationRequest, check_options  # noqa: PLC0415

    task = task_of_run(run)
    request = EvaluationRequest(
        data=data,
        source=source,
        target=target,
        length_bins=length_bins,
        paper_bleu=paper_bleu,
        beam=beam,
        against=against,
        model=model,
        name=name,
        beyond=beyond,
        labels=labels,
        unit=unit,
    )
    check_options(task, run, request)
    task.evaluate(RunFolder.existing(run), request, console)


@app.command()
def predict(
    run: options.RunPath,
    data: options.PredictionData,
    out: options.PredictionsFile,
    labels: options.LabelsFile = None,
    asked: options.AskedFile = None,
    unit: options.UnitName = "",
    model: options.Weights = None,
) -> None:
    """Write the predictions of a trained model for a file, as CSV."""
    from .runs.folder import RunFolder  # noqa: PLC0415
    from .tasks import task_of_run  # noqa: PLC0415
    from .training.task import PredictionRequest  # noqa: PLC0415

    check_output(out, "--out", data, labels, asked)
    task = task_of_run(run)
    request = PredictionRequest(data, out, labels, asked, unit, model)
    task.write_predictions(RunFolder.existing(run), request, console)


@app.command()
def translate(
    run: options.RunPath,
    input: options.InputFile = None,
    output: options.OutputFile = None,
    beam: options.Beam = None,
    window: options.WindowSize = 1000,
    model: options.Weights = None,
    beyond: options.Beyond = "",
) -> None:
    """Translate text line by line; empty lines stay empty."""
    from .tasks.translation.translate import translate  # noqa: PLC0415

    translate(run, input, output, beam, window, model, beyond)


@app.command()
def average(
    run: options.RunPath,
    last: options.Last = 5,
    out: options.AveragedFolder = None,
) -> None:
    """Average the weights of the last checkpoints of a run."""
    from .runs.folder import RunFolder  # noqa: PLC0415
    from .tasks import task_of_run  # noqa: PLC0415

    folder = RunFolder.existing(run)
    print_text(console, f"wrote {task_of_run(run).average(folder, last, out)}")


@app.command()
def report(
    folders: options.ReportFolders,
    out: options.ReportFile = Path("report.html"),
    title: options.ReportTitle = "",
) -> None:
    """Write a self-contained HTML page about runs: scores, curves, encodings and configs."""
    from .report.page import write_report  # noqa: PLC0415

    check_output(out, "--out")
    page = write_report(folders, out, title=title)
    for note in page.notes:
        typer.echo(note, err=True)
    count = f"{len(page.runs)} run{'s' if len(page.runs) != 1 else ''}"
    print_text(console, f"wrote {out} ({count}, {out.stat().st_size / 1e6:.1f} MB)")


@app.command()
def plot(
    model: options.ModelPath,
    kind: options.PlotKind = "heatmap",
    site: options.SiteName = "",
    length: options.PlotLength = None,
    out: options.FigureFile = None,
) -> None:
    """Plot the position encodings of a model.

    Computed encodings are stored in the run folder, where `floater report` finds them.
    """
    from .report.figures import check_plot, plot  # noqa: PLC0415

    path = out or Path(f"{model.resolve().name}-{kind}.png")
    check_plot(kind, path)
    check_output(path, "--out")
    encodings = _encodings(model, length)
    title = f"{model.resolve().name}: {encodings.description}"
    plot(encodings.site(site) if site else encodings, kind, path, title=title)
    print_text(console, f"wrote {path}")


def _encodings(model: Path, length: int | None) -> Encodings:
    """The stored encodings of a run if there are enough of them; otherwise they are computed."""
    from .runs.encodings import Encodings  # noqa: PLC0415

    stored = Encodings.read(model)
    if stored is not None and (length is None or length <= len(stored.times)):
        return stored if length is None else stored.first(length)
    from .training.extract_encodings import encodings_of  # noqa: PLC0415

    encodings = encodings_of(model, length)
    if encodings is None:
        raise RunError(
            f"{model} has no table of encodings to plot: `rotary` rotates queries and keys, "
            "`relative` has vectors for distances, and `none` adds nothing."
        )
    return encodings
