"""Arguments and options of the commands, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

MAX_PLOT_LENGTH = 100_000

# Shared by several commands -------------------------------------------------------------------

RunPath = Annotated[Path, Argument(help="Run folder.")]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, e.g. training.updates=100. May be repeated.",
    ),
]
Workers = Annotated[
    int, Option(min=1, max=1024, help="Number of runs at the same time, one process per run.")
]
Beam = Annotated[int | None, Option(min=1, max=1000, help="Beam width; default: that of the run.")]
Weights = Annotated[
    Path | None,
    Option(
        help="Folder with the weights to use, e.g. from `floater average --out`; default: those "
        "of the run."
    ),
]

Beyond = Annotated[
    str,
    Option(
        help="What happens to inputs longer than any in training: extrapolate, compress (their "
        "tokens are put closer together) or error; default: that of the model."
    ),
]

# demo -----------------------------------------------------------------------------------------

DemoFolder = Annotated[Path, Option(help="Folder for the runs, the figures and the report.")]
DemoUpdates = Annotated[int, Option(min=2, max=10**9, help="Number of updates of each model.")]
DemoRounds = Annotated[
    int, Option(min=1, max=10_000, help="Number of rounds in which updates are timed.")
]
DemoSeed = Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of the translation models.")]
Again = Annotated[
    bool, Option("--again", help="Train again if the folder holds the runs of a demo.")
]

# extend ---------------------------------------------------------------------------------------

PretrainedModel = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="Folder or hub name of a model with rotary positions or a position table.",
    ),
]
NewLength = Annotated[
    int,
    Option(
        min=2,
        max=2**24,
        help="Tokens of the longest inputs; for Whisper, positions of its encoder, 50 per second.",
    ),
]
ExtendedFolder = Annotated[Path, Option(help="Folder for the extended model.")]
TrainingText = Annotated[
    list[Path] | None,
    Option(
        "--text",
        help="Text file to train on, plain, .gz or .jsonl. May be repeated. Without it, nothing is "
        "trained: positions stay at the scaling.",
    ),
]
HeldOutText = Annotated[
    list[Path] | None, Option("--valid", help="Held-out text file. May be repeated.")
]
ScalingName = Annotated[
    str,
    Option(
        help="Where positions start. Rotary: none (as they are), linear, ntk, yarn (default) or "
        "log. Tables: waves (default), linear, group, cycle or hierarchy."
    ),
]
TrainedWeights = Annotated[
    str,
    Option(
        "--train",
        help="With --text, what to train: the `positions` alone, or `all` weights of the model "
        "with them, which serves long inputs better.",
    ),
]
ExtensionUpdates = Annotated[
    int | None, Option(min=1, max=10**9, help="Number of updates; 200 by default.")
]

# reproduce ------------------------------------------------------------------------------------

ItemName = Annotated[
    str,
    Argument(
        help="capabilities, nmt, glue, race, squad, s2l, lengths, masked, rnn, heatmaps, "
        "efficiency, series, events or documents."
    ),
]
ScaleName = Annotated[
    str,
    Option(
        help="smoke (generated data, minutes), small (real data, up to an hour) or paper (the "
        "sizes of the paper; needs GPUs)."
    ),
]
ReproductionsFolder = Annotated[
    Path, Option(help="Folder for all reproductions; each one gets its own folder in it.")
]
Seeds = Annotated[str, Option(help="Seeds of the runs, separated by commas, e.g. 0,1,2.")]
VariantKeys = Annotated[
    str,
    Option(
        "--variants",
        "--arms",
        help="Variants to run, separated by commas, e.g. sinusoidal,flow-blocks (for glue: "
        "cola,rte); default: all.",
    ),
]
CheckOnly = Annotated[
    bool,
    Option(
        "--check",
        help="Check the configs and count the parameters of the models, but train nothing.",
    ),
]

# train, compare -------------------------------------------------------------------------------

ConfigFile = Annotated[
    Path, Argument(help="Config file, e.g. configs/translation/multi30k-sinusoidal.yaml.")
]
RunFolderToWrite = Annotated[
    Path | None, Option(help="Run folder; default: runs/<name of the config>.")
]
Resume = Annotated[bool, Option("--resume", help="Continue the run in the folder.")]
ConfigFiles = Annotated[
    list[Path],
    Argument(help="Config files of any task but translation, e.g. configs/glue/small/*.yaml."),
]
ComparisonFolder = Annotated[Path, Option(help="Folder for the runs and the table.")]
ResumeComparison = Annotated[
    bool, Option("--resume", help="Continue the runs in the folder; skip finished ones.")
]

# evaluate -------------------------------------------------------------------------------------

DataFile = Annotated[
    Path | None,
    Option(
        help="Not translation: file in the format of the task; default: the evaluation sets of the "
        "run."
    ),
]
SourceFile = Annotated[
    Path | None,
    Option(
        help="Translation: source sentences, one per line, plain or .gz; default: the test set of "
        "the run."
    ),
]
TargetFile = Annotated[
    Path | None, Option(help="Translation: reference translations, one per line.")
]
LengthBins = Annotated[
    str,
    Option(
        help="Translation: also score bins of source length with these edges in tokens, e.g. "
        "80,100,120,140."
    ),
]
PaperBleu = Annotated[
    bool, Option("--paper-bleu", help="Translation: also compute the paper's tokenised BLEU.")
]
Against = Annotated[
    Path | None, Option(help="Run folder to compare with, by paired bootstrap resampling.")
]
SetName = Annotated[
    str,
    Option(help="Name under which predictions and scores are stored; default: that of the file."),
]

LabelsFile = Annotated[
    Path | None,
    Option(help="Series: file with labels and static columns; default: that of the run's config."),
]
UnitName = Annotated[
    str,
    Option(help="Unit of the times in the data; another one than the model's is refused."),
]

# predict --------------------------------------------------------------------------------------

PredictionData = Annotated[Path, Option(help="File in the format of the task, without labels.")]
PredictionsFile = Annotated[Path, Option(help="CSV file to write.")]
AskedFile = Annotated[
    Path | None,
    Option(help="Series: file with id, time and variable of the values to predict."),
]

# translate ------------------------------------------------------------------------------------

InputFile = Annotated[
    Path | None,
    Option(help="File to translate, one sentence per line; default: standard input."),
]
OutputFile = Annotated[Path | None, Option(help="File to write; default: standard output.")]
WindowSize = Annotated[
    int, Option(min=1, help="Number of lines that are sorted by length and batched together.")
]

# average --------------------------------------------------------------------------------------

Last = Annotated[int, Option(min=1, help="Number of checkpoints to average.")]
AveragedFolder = Annotated[
    Path | None,
    Option(help="Folder for the averaged model; default: replace the model of the run."),
]

# report ---------------------------------------------------------------------------------------

ReportFolders = Annotated[
    list[Path],
    Argument(
        help="Folders of runs, comparisons or reproductions, or folders that contain them.",
        metavar="RUNS...",
    ),
]
ReportFile = Annotated[Path, Option(help="HTML file to write.")]
ReportTitle = Annotated[str, Option(help="Title of the page; default: taken from its content.")]

# plot -----------------------------------------------------------------------------------------

ModelPath = Annotated[Path, Argument(help="Run folder, or a model saved by save_pretrained.")]
PlotKind = Annotated[str, Option(help="heatmap, trajectory, similarity or spectrum.")]
SiteName = Annotated[
    str, Option(help='Site to plot, e.g. "encoder block 1"; default: the first twelve sites.')
]
PlotLength = Annotated[
    int | None,
    Option(
        min=2,
        max=MAX_PLOT_LENGTH,
        help="Number of positions; default: as many as the run stores.",
    ),
]
FigureFile = Annotated[
    Path | None, Option(help="PNG or SVG file to write; default: <name>-<kind>.png.")
]
