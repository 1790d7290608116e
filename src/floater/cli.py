"""The command line: typed functions become commands."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import stopping
from .errors import ArgumentError, FloaterError, RunError, first_line
from .room import check_output

if TYPE_CHECKING:
    from .runs.encodings import Encodings

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console(
    markup=False
)  # what is printed are names of files and values, where [/red] is no markup


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"floater {version('floater-transformers')}")
        raise typer.Exit


@app.callback()
def floater(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """FLOATER: position encodings as the solution of a learned ODE."""


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.updates=100."),
]
LONGEST_PLOT = 100_000
"""Encodings that can be drawn; a figure shows no more than some thousands of them one by one."""
Workers = Annotated[
    int, typer.Option(min=1, max=1024, help="Runs at a time, each in a process of its own.")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and the page.")] = Path(
        "demo"
    ),
    updates: Annotated[
        int, typer.Option(min=2, max=10**9, help="Updates of each translator.")
    ] = 600,
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Turns of each model when updates are timed.")
    ] = 12,
    workers: Workers = 2,
    again: Annotated[
        bool, typer.Option("--again", help="Train anew where the folder holds an earlier demo.")
    ] = False,
) -> None:
    """Train four translators on embedded data, test them far beyond the lengths they saw, and write
    a page about it.
    """
    _folder_for(out)
    from .experiments.demo import demo  # noqa: PLC0415  (torch is slow to import)

    demo(out, console, updates=updates, rounds=rounds, workers=workers, again=again)


@app.command()
def reproduce(
    item: Annotated[
        str,
        typer.Argument(
            help="capabilities, nmt, glue, race, squad, s2l, rnn, heatmaps or efficiency."
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(help="smoke (embedded data), small (files, up to an hour) or paper (GPUs)."),
    ] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder of all reproductions.")] = Path("reproductions"),
    seeds: Annotated[str, typer.Option(help="Seeds of the runs, e.g. 0,1,2.")] = "0",
    variants: Annotated[
        str,
        typer.Option(
            "--variants",
            "--arms",
            help="Variants to run, e.g. sinusoidal,flow-blocks (for glue: cola,rte); default: all.",
        ),
    ] = "",
    workers: Workers = 2,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Resolve configs and build models without memory; train nothing."
        ),
    ] = False,
    override: Overrides = None,
) -> None:
    """Reproduce a table or figure of the paper.

    A run that was stopped goes on; finished ones are kept.
    """
    _folder_for(out)
    keys = [key for key in variants.split(",") if key]
    if variants and not keys:
        raise ArgumentError(
            f"`--variants` must be names with commas between them, but is {variants!r}."
        )
    from .experiments import reproduce as machine  # noqa: PLC0415  (torch is slow to import)

    machine.reproduce(
        item,
        scale,
        out,
        seeds=_seeds(seeds),
        workers=workers,
        console=console,
        keys=keys,
        overrides=override or [],
        check_only=check,
    )


def _folder_for(out: Path) -> None:
    """Refuse a place that cannot become a folder with files in it, before any work."""
    from .room import check_folder  # noqa: PLC0415

    check_folder(out)


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"`--seeds` must be whole numbers with commas between, but is {text!r}."
        ) from None
    if len(set(found)) < len(found):
        raise ArgumentError(f"`--seeds` must differ from each other, but are {text}.")
    return found


@app.command()
def train(
    config: Annotated[
        Path,
        typer.Argument(help="A config file, e.g. configs/translation/multi30k-sinusoidal.yaml."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/<name of the config>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an earlier start of this run.")
    ] = False,
    override: Overrides = None,
) -> None:
    """Train what a config describes, evaluate it, and keep everything in a run folder."""
    from .tasks import task_from_file  # noqa: PLC0415  (torch is slow to import)
    from .training.run import run  # noqa: PLC0415

    task = task_from_file(config, override or [])
    folder = out or Path("runs") / config.stem
    _folder_for(folder)
    run(task, folder, resume=resume, console=Console(stderr=True, markup=False))


@app.command()
def compare(
    configs: Annotated[
        list[Path],
        typer.Argument(
            help="Config files of understanding tasks, such as configs/glue/small/*.yaml."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the table.")] = Path(
        "runs/compare"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what the folder holds; finished runs stay.")
    ] = False,
    override: Overrides = None,
) -> None:
    """Train the untouched model and the same one with FLOATER, with the same data, settings and
    seeds, and compare them.
    """
    from .tasks.compare import compare_configs  # noqa: PLC0415

    _folder_for(out)
    table = compare_configs(
        configs, override or [], out, resume=resume, console=Console(stderr=True, markup=False)
    )
    console.print(table, highlight=False, markup=False, soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Understanding: a file of the task's layout; the run's own sets unless given."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Translation: source sentences, one a line (.gz works); the run's test set unless "
                "given."
            )
        ),
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Their references.")] = None,
    length_bins: Annotated[
        str, typer.Option(help="Edges of bins of source length in tokens, e.g. 80,100,120,140.")
    ] = "",
    paper_bleu: Annotated[
        bool, typer.Option("--paper-bleu", help="Also the paper's tokenised BLEU.")
    ] = False,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Width of the beam; the run's unless given.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another run: paired bootstrap of this one against it.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Weights to use instead of the run's, e.g. from `floater average --out`."
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="Name under which predictions and scores are kept; that of the file unless given."
        ),
    ] = "",
) -> None:
    """Predict a test set and score it."""
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
    )
    check_options(task, run, request)
    task.evaluate(RunFolder.existing(run), request, console)


@app.command()
def translate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    input: Annotated[
        Path | None,
        typer.Option(help="File to translate, one sentence a line; standard input unless given."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; standard output unless given.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Width of the beam; the run's unless given.")
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Lines that are sorted by length and translated together.")
    ] = 1000,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Weights to use instead of the run's, e.g. from `floater average --out`."
        ),
    ] = None,
) -> None:
    """Translate lines; order and empty lines are kept."""
    from .tasks.translation.translate import translate  # noqa: PLC0415

    translate(run, input, output, beam, window, model)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints.")] = 5,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the averaged model; the run's own model unless given."),
    ] = None,
) -> None:
    """Average the weights of the last checkpoints of a run."""
    from .runs.folder import RunFolder  # noqa: PLC0415
    from .tasks import task_of_run  # noqa: PLC0415

    folder = RunFolder.existing(run)
    written = task_of_run(run).average(folder, last, out)
    console.print(f"wrote {written}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs and of reproductions, or folders of these.", metavar="RUNS..."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[
        str, typer.Option(help="Its heading; taken from what it shows unless given.")
    ] = "",
) -> None:
    """Make one self-contained page of runs: scores, curves, encodings, configs.

    Needs no torch, no network, no server.
    """
    from .report.page import write_report  # noqa: PLC0415

    check_output(out, "--out")
    shown = write_report(folders, out, title=title)
    for note in shown.notes:
        typer.echo(note, err=True)
    size = out.stat().st_size / 1e6
    count = len(shown.runs)
    console.print(
        f"wrote {out} ({count} run{'s' if count != 1 else ''}, {size:.1f} MB)",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command()
def plot(
    model: Annotated[
        Path, typer.Argument(help="A run folder, or a model that floater.save_pretrained wrote.")
    ],
    kind: Annotated[
        str, typer.Option(help="heatmap, trajectory, similarity or spectrum.")
    ] = "heatmap",
    site: Annotated[
        str, typer.Option(help='One site, e.g. "encoder block 1"; the first twelve unless given.')
    ] = "",
    length: Annotated[
        int | None,
        typer.Option(
            min=2, max=LONGEST_PLOT, help="Encodings; as many as the run keeps unless given."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG or SVG file; <name>-<kind>.png unless given.")
    ] = None,
) -> None:
    """Draw the encodings of a model. A run keeps what was computed, for `floater report`."""
    from .report.figures import check_plot, plot  # noqa: PLC0415

    path = out or Path(f"{model.resolve().name}-{kind}.png")
    check_plot(kind, path)
    check_output(path, "--out")
    found = _encodings(model, length)
    written = plot(
        found.site(site) if site else found,
        kind,
        path,
        title=f"{model.resolve().name}: {found.description}",
    )
    console.print(f"wrote {written}", highlight=False, markup=False, soft_wrap=True)


def _encodings(model: Path, length: int | None) -> Encodings:
    from .runs.encodings import Encodings  # noqa: PLC0415

    kept = Encodings.read(model)
    if kept is not None and (length is None or length <= len(kept.times)):
        return kept if length is None else kept.first(length)
    # torch is slow to import, and not needed before
    from .training.extract_encodings import encodings_of  # noqa: PLC0415

    found = encodings_of(model, length)
    if found is None:
        raise RunError(
            f"{model} has no table of encodings to draw: rotary encodings turn queries and keys, "
            "and `none` adds nothing."
        )
    return found


def main() -> None:
    """Entry point: mistakes of the user end in one line and exit code 2, Ctrl-C in one line and
    130.
    """
    stopping.listen()
    try:
        code = _run()
    finally:
        stopping.rest()
    sys.exit(code)


def _run() -> int:
    """Run the command; whichever way it ends is an exit code, with one line on stderr where
    something is wrong.
    """
    started = time.perf_counter()
    _prepare_output()
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="floater", standalone_mode=False)
        sys.stdout.flush()
    except (
        KeyboardInterrupt
    ):  # typer has an exit code for it; here it comes before or after a command
        code = _INTERRUPTED
    except Exception as error:
        if stopping.asked():  # many libraries turn Ctrl-C into an error of their own
            stopping.leave()
        if os.environ.get("FLOATER_TRACEBACK") == "1":
            traceback.print_exc()
        code, words = _explain(error)
        _tell(words)
        _drop_output()
        return code
    if code == _INTERRUPTED:
        if stopping.asked():
            stopping.leave()
        _tell(f"stopped after {time.perf_counter() - started:.0f} s.")
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and message of an exception."""
    if isinstance(
        error, typer.TyperException
    ):  # what typer itself finds wrong, which it would draw as a box of five lines
        asked = getattr(error, "ctx", None)
        hint = f" See `{asked.command_path} --help`." if asked is not None else ""
        words = str(getattr(error, "format_message", error.__str__)())
        return 2, words.rstrip(".?") + ("?" if words.endswith("?") else ".") + hint
    if isinstance(error, FloaterError):
        return 2, str(error)
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'a file'} cannot be used: {error.strerror or error}."
    return _of_the_machine(error)


def _of_the_machine(error: Exception) -> tuple[int, str]:
    """The same where nobody has made a mistake, or we have."""
    text = first_line(error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return (
            2,
            (
                f"there is not enough memory ({text}); make the model, the batch or the length "
                "smaller."
            ),
        )
    if isinstance(error, RecursionError):
        return 2, f"something that was read is nested too deeply ({text}); make it flatter."
    if isinstance(error, typer.Abort):
        return 2, "the input ended before it was complete; give all of it."
    return (
        1,
        (
            f"{type(error).__name__}: {text}. This is a defect of floater, not a mistake of yours; "
            "FLOATER_TRACEBACK=1 before the command shows where it arose, for a report."
        ),
    )


def _prepare_output() -> None:
    """Names of files may hold bytes that are no text, and a program may be started without an
    output: neither is an error.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open as long as the process runs)
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if unicode else "backslashreplace")


def _drop_output() -> None:
    """Forget what could not be written, so that Python does not complain about it once more at its
    end.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str) -> None:
    """Write one line to stderr, whatever the message holds."""
    line = _CONTROL.sub(lambda found: repr(found.group())[1:-1], _BREAK.sub(" ", message.strip()))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    with contextlib.suppress(OSError, ValueError):
        typer.echo(f"floater: {line}", err=True)


_BREAK = re.compile(r"\s*[\n\r\v\f\x85\u2028\u2029]\s*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_LINE = 2000
_INTERRUPTED = 130
"""What typer returns after Ctrl-C."""
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Unable to allocate",
    "bad allocation",
)
"""What torch and numpy say, whose errors of this kind have many classes."""
