"""`floater extend`: a pretrained model that takes longer inputs, as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModel

from ..attachments import attachment, extend, save_pretrained
from ..attachments.extending import extendable
from ..attachments.layouts import LAYOUTS, position_limit
from ..attachments.saving import staging_folder
from ..encoders import PhaseFlow, PhaseFlowConfig, TableFlow, TableFlowConfig
from ..encoders.phases import SCALINGS
from ..encoders.tables import TABLE_SCALINGS
from ..errors import ArgumentError, AttachmentError, ConfigError, RunError
from ..files import reading
from ..printing import print_text
from ..recipes import with_overrides
from ..runs.folder import RunFolder
from ..tasks import task_from
from ..tasks.compare import compare, run_folders
from ..tasks.understanding.models import load, load_tokenizer, locate
from ..training.process import process_settings
from .extension_figures import TablePath, draw_clocks
from .sentence_folders import copy_sentence_transformers
from .sound_folders import SoundFiles

TRAINING = "training"
"""Folder of the runs inside that of an extended model."""
_UPDATES = 200
_PARTS = ("positions", "all")
"""What can be trained."""
_STARTS = {"phases": "yarn", "table": "waves"}
"""Where positions start by default, by the site."""


def extend_model(
    name: str,
    length: int,
    out: Path,
    *,
    text: Sequence[Path] = (),
    valid: Sequence[Path] = (),
    scaling: str = "",
    part: str = "positions",
    updates: int | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    console: Console,
) -> None:
    """Write a model folder whose model takes inputs of `length` tokens, and say how well it does.

    Args:
        name: folder or hub name of a model with rotary positions or a position table.
        length: tokens of the longest inputs; for Whisper, positions of its encoder.
        out: folder to write.
        text: files to train the positions on; without any, they stay at the scaling.
        valid: held-out files, to measure the loss by position.
        scaling: where the positions start; empty for yarn (rotary positions) or waves (tables).
        part: what to train: "positions", or "all" weights of the model with them.
        updates: number of updates; 200 by default.
        overrides: settings of the run to change, such as `training.batch=8`.
        resume: continue the runs in the folder.
        console: where to print.
    """
    if part not in _PARTS:
        raise ArgumentError(f"`--train` must be one of {', '.join(_PARTS)}, but is {part!r}.")
    if bool(text) != bool(valid):
        raise ArgumentError("`--text` and `--valid` go together, but only one is given.")
    if not text and (overrides or resume or updates is not None or part != _PARTS[0]):
        raise ArgumentError(
            "`--set`, `--train`, `--updates` and `--resume` are for training, but no `--text` is "
            "given."
        )
    _check_folders(name, out, resume)
    where = locate(name)
    settings = _config(where)
    trained = _check_length(settings, name, length)
    layout = LAYOUTS[settings.model_type]
    site = "phases" if layout.rotary else "table"
    scaling = _check_scaling(scaling, site, name)
    if layout.frames and text:
        raise ArgumentError(
            f"`--text` must be left out for {name}, which reads sound, but is given; extend it with"
            " floater.extend to train it."
        )
    sound = SoundFiles(where, length, layout.frames) if layout.frames else None
    if not text and scaling == "none":
        raise ArgumentError(
            "`--text` (files to train on) must be given with `--scaling none`, but is not; the "
            "model would stay as it is."
        )
    if text:
        run = _settings(_task(settings, name), name, length, trained, text, valid, site, scaling)
        run["training"] |= _steps(updates or _UPDATES)
        if part == "all":
            _train_all(run)
        task = task_from(with_overrides(run, overrides))
        _check_run(task, name, length)
        compare(task, out / TRAINING, resume=resume, console=console)
        _print_losses(task, out / TRAINING, console)
        (folder,) = run_folders(task, out / TRAINING)["floater"]
        model: Any = task.load(folder.model)[0]  # type: ignore[attr-defined]
        if site == "phases":
            model.config.max_position_embeddings = length
        with process_settings(None):
            _write(model, where, length, trained, out, console)
    else:
        with process_settings(None):
            model = load(_saved_class(settings), where)
            extend(model, length, scaling=scaling, learned=False, trained=trained)  # type: ignore[arg-type]
            _write(model, where, length, trained, out, console, sound)
    inputs = f"inputs of {length:,} positions" if sound else f"inputs of up to {length:,} tokens"
    print_text(console, f"wrote {out}: {inputs}, {trained:,} before")


def _check_folders(name: str, out: Path, resume: bool) -> None:
    """Refuse to overwrite a model, and to extend one that is extended already."""
    if (Path(name) / "floater_config.json").is_file():
        raise ConfigError(
            f"`MODEL` must be a model without a FLOATER encoder, but {name} has one; give the model"
            " that it was made from."
        )
    if resume and (out / TRAINING).is_dir():
        return
    if (out / "config.json").exists():
        raise RunError(f"{out} holds a model already; choose another --out.")
    others = [path.name for path in out.iterdir() if path.name != TRAINING] if out.is_dir() else []
    if others:
        raise RunError(
            f"{out} must be a new or empty folder, but holds {min(others)}; choose another --out."
        )


def _check_run(task: Any, name: str, length: int) -> None:
    """Refuse changed settings that contradict the command, before anything is trained."""
    config = task.config
    encoder = config.positions.encoder
    problem = None
    if config.model.name != name:
        problem = f"model.name must be {name}, the MODEL, but is {config.model.name}"
    elif not isinstance(encoder, PhaseFlowConfig | TableFlowConfig) or not encoder.learned:
        problem = "positions.encoder must be learned phases or a learned table, but is not"
    elif config.max_length > length or (config.valid_length or config.max_length) > length:
        problem = f"max_length and valid_length must be at most --length, {length:,}"
    elif config.compare.only is not None or "floater" in config.compare.leave_out:
        problem = "compare.only and leave_out must be left out, because all scalings are compared"
    elif not config.training.keep_model:
        problem = "training.keep_model must be true, because the model is written"
    elif len(task.seeds()) != 1:
        problem = f"compare.seeds must be one seed, but are {len(task.seeds())}"
    if problem is not None:
        raise ArgumentError(f"`--set`: {problem}; leave it out.")


def _write(
    model: Any,
    where: str,
    length: int,
    trained: int,
    out: Path,
    console: Console,
    sound: SoundFiles | None = None,
) -> None:
    """Write the model, its tokenizer (or the files of a model that reads sound) and a figure of its
    positions. A longer table becomes part of the model where its architecture allows it.
    """
    tokenizer = sound or _longer_tokenizer(where, length)
    attached = attachment(model)
    encoder = None if attached is None else next(iter(attached.encoders.values()))
    if attached is None or not isinstance(encoder, PhaseFlow | TableFlow):
        raise RunError(f"{out} must hold a model with longer positions, but does not.")
    if isinstance(encoder, PhaseFlow):
        save_pretrained(model, out)
        tokenizer.save_pretrained(str(out))
        draw_clocks(encoder, length, trained, out / "phases.png")
    else:
        path = TablePath.of(attached, length)
        print_text(console, path.describe())
        if (warning := path.warning()) is not None:
            print_text(console, f"warning: {warning}")
        with staging_folder(out, base=True) as staging:
            path.draw(staging / "table.png")
            tokenizer.save_pretrained(str(staging))
            _write_table(model, where, length, staging, console)


def _longer_tokenizer(where: str, length: int) -> Any:
    """The tokenizer of a model for longer inputs; a limit of its own is removed."""
    tokenizer: Any = load_tokenizer(where, pads=False)
    tokenizer.model_max_length = length
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _write_table(model: Any, where: str, length: int, folder: Path, console: Console) -> None:
    """Write a model with a longer table: as a plain one if possible."""
    attached = attachment(model)
    assert attached is not None
    try:
        attached.merge(length)
    except AttachmentError as error:
        print_text(console, f"The folder needs this package to be loaded. {error}")
        save_pretrained(model, folder)
        return
    model.save_pretrained(folder)
    copy_sentence_transformers(Path(where), folder, length)


def _config(where: str) -> Any:
    with reading(f"The config of {where}", ConfigError, "check its config.json."):
        return AutoConfig.from_pretrained(where, trust_remote_code=False)


def _check_length(settings: Any, name: str, length: int) -> int:
    """The number of positions of a model; refuses models and lengths that do not fit."""
    layout = LAYOUTS.get(getattr(settings, "model_type", ""))
    if layout is None or not extendable(layout):
        raise ConfigError(
            "`MODEL` must have rotary positions or a position table, and be of one of the "
            f"architectures {', '.join(key for key, own in LAYOUTS.items() if extendable(own))}, "
            f"but {name} is of the architecture {settings.model_type}."
        )
    trained = (
        getattr(settings, "max_position_embeddings", None)
        if layout.rotary
        else position_limit(settings)
    )
    if not isinstance(trained, int):
        raise ConfigError(
            f"`MODEL` must name its number of positions (max_position_embeddings) in its config, "
            f"but {name} does not: it has no limit to extend."
        )
    if length <= trained:
        raise ArgumentError(
            f"`--length` must be larger than the {trained:,} positions of {name}, but is "
            f"{length:,}; such inputs need no extension."
        )
    return trained


def _check_scaling(scaling: str, site: str, name: str) -> str:
    """The scaling, or the default of the site; refuses one of the other family."""
    known: Sequence[str] = SCALINGS if site == "phases" else TABLE_SCALINGS
    if scaling and scaling not in known:
        what = "rotary positions" if site == "phases" else "a position table"
        raise ArgumentError(
            f"`--scaling` must be one of {', '.join(known)} for {name}, which has {what}, but is "
            f"{scaling!r}."
        )
    return scaling or _STARTS[site]


def _saved_class(settings: Any) -> Any:
    """The class that a model was saved from, so that its head stays."""
    for name in getattr(settings, "architectures", None) or ():
        if isinstance(found := getattr(transformers, str(name), None), type):
            return found
    return AutoModel


def _task(settings: Any, name: str) -> str:
    """The task that trains a model, by the head that it was saved with."""
    classes = [str(each) for each in getattr(settings, "architectures", None) or ()]
    if any(each.endswith(("ForCausalLM", "LMHeadModel")) for each in classes):
        return "causal_lm"
    if any(each.endswith("ForMaskedLM") for each in classes):
        return "masked_lm"
    raise ConfigError(
        f"`MODEL` must be a causal or masked language model to be trained, but {name} is a "
        f"{' or '.join(classes) or 'model without a class'}; leave `--text` out to extend it "
        "without training."
    )


def _steps(updates: int) -> dict[str, int]:
    return {
        "updates": updates,
        "evaluate_every": updates,
        "save_every": max(updates // 4, 1),
    }


def _settings(
    task: str,
    name: str,
    length: int,
    trained: int,
    text: Sequence[Path],
    valid: Sequence[Path],
    site: str,
    scaling: str,
) -> dict[str, Any]:
    """Settings of a run that trains positions on windows of the model's own length."""
    edges = [trained // 2, trained]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return {
        "task": task,
        "model": {"name": name},
        "data": {"train": [str(path) for path in text], "valid": [str(path) for path in valid]},
        "max_length": trained,
        "valid_length": length,
        "bins": [edge for edge in edges if edge < length],
        "positions": {
            "encoder": {
                "kind": site,
                "scaling": scaling,
                "factor": length / trained,
                "length": trained,
            },
            "sites": site,
            "jitter": {"gaps": 1, "until": length},
        },
        "training": {"batch": 8, "lr": 0.005 if site == "phases" else 0.001},
        "compare": {"seeds": [0]},
    }


def _train_all(run: dict[str, Any]) -> None:
    """Let a run train all weights, with a rate of their own. Causal models read parts of long texts
    at their own positions; the settings are those of docs/results.md.
    """
    positions_rate = run["training"]["lr"]
    run["training"] |= {"part": "all", "lr": 5e-5, "flow_lr_multiple": positions_rate / 5e-5}
    if run["task"] == "causal_lm":
        run["skips"] = 1
        del run["positions"]["jitter"]
        run["training"]["flow_lr_multiple"] = 40.0
    run["compare"]["leave_out"] = ["trained"]


def _print_losses(task: Any, folder: Path, console: Console) -> None:
    """A table of the held-out loss by position, for every variant."""
    measures = [name for name in task.measures if name.startswith("loss")]
    table = Table(title="held-out loss by position, nats per token")
    for heading in ("positions", *(name.replace("loss ", "") for name in measures)):
        table.add_column(heading, justify="left" if heading == "positions" else "right")
    for variant, (run, *_) in run_folders(task, folder).items():
        scores = RunFolder(run.path).scores().sets["valid"].scores
        cells = [f"{scores[name].score:.3f}" if name in scores else "" for name in measures]
        table.add_row("learned" if variant == "floater" else variant, *cells)
    console.print(table)
    if measures[-1] not in scores:
        print_text(
            console,
            f"No held-out block reaches position {task.config.bins[-1]:,}: nothing past it was "
            "measured; give more held-out text.",
        )
