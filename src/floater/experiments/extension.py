"""`floater extend`: a pretrained rotary model that takes longer inputs, as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from ..attachments import attachment, extend, save_pretrained
from ..attachments.layouts import LAYOUTS
from ..encoders import PhaseFlow, PhaseFlowConfig
from ..encoders.phases import SCALINGS
from ..errors import ArgumentError, ConfigError, RunError
from ..files import reading
from ..printing import print_text
from ..recipes import with_overrides
from ..report.figures import grid, save
from ..runs.folder import RunFolder
from ..tasks import task_from
from ..tasks.compare import compare, run_folders
from ..tasks.understanding.models import load, load_tokenizer, locate
from ..training.process import process_settings

TRAINING = "training"
"""Folder of the runs inside that of an extended model."""
_FIGURE = "phases.png"
_UPDATES = 200
_LINES = 6
"""Clocks that a figure shows."""


def extend_model(
    name: str,
    length: int,
    out: Path,
    *,
    text: Sequence[Path] = (),
    valid: Sequence[Path] = (),
    scaling: str = "yarn",
    updates: int | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    console: Console,
) -> None:
    """Write a model folder whose model takes inputs of `length` tokens, and say how well it does.

    Args:
        name: folder or hub name of a model with rotary positions.
        length: tokens of the longest inputs.
        out: folder to write.
        text: files to train the clocks of the phases on; without any, they stay at the scaling.
        valid: held-out files, to measure the loss by position.
        scaling: where the clocks start.
        updates: number of updates; 200 by default.
        overrides: settings of the run to change, such as `training.batch=8`.
        resume: continue the runs in the folder.
        console: where to print.
    """
    if scaling not in SCALINGS:
        raise ArgumentError(
            f"`--scaling` must be one of {', '.join(SCALINGS)}, but is {scaling!r}."
        )
    if bool(text) != bool(valid):
        raise ArgumentError("`--text` and `--valid` go together, but only one is given.")
    if not text and (overrides or resume or updates is not None):
        raise ArgumentError(
            "`--set`, `--updates` and `--resume` are for training, but no `--text` is given."
        )
    _check_folders(name, out, resume)
    where = locate(name)
    settings = _config(where)
    trained = _check_length(settings, name, length)
    task_name, auto_class = _head(settings, name)
    if not text and scaling == "none":
        raise ArgumentError(
            "`--text` (files to train on) must be given with `--scaling none`, but is not; the "
            "model would stay as it is."
        )
    if text:
        run = _settings(task_name, name, length, trained, text, valid, scaling, updates or _UPDATES)
        task = task_from(with_overrides(run, overrides))
        _check_run(task, name, length)
        compare(task, out / TRAINING, resume=resume, console=console)
        _print_losses(task, out / TRAINING, console)
        (folder,) = run_folders(task, out / TRAINING)["floater"]
        model: Any = task.load(folder.model)[0]  # type: ignore[attr-defined]
        model.config.max_position_embeddings = length
        with process_settings(None):
            _write(model, where, length, trained, out)
    else:
        with process_settings(None):
            model = load(auto_class, where)
            extend(model, length, scaling=scaling, learned=False, trained=trained)
            _write(model, where, length, trained, out)
    print_text(console, f"wrote {out}: inputs of up to {length:,} tokens, {trained:,} before")


def _check_folders(name: str, out: Path, resume: bool) -> None:
    """Refuse to overwrite a model, and to extend one that is extended already."""
    if (Path(name) / "floater_config.json").is_file():
        raise ConfigError(
            f"`MODEL` must be a model without a FLOATER encoder, but {name} has one; give the model"
            " that it was made from."
        )
    if (out / "config.json").exists() and not (resume and (out / TRAINING).is_dir()):
        raise RunError(f"{out} holds a model already; choose another --out.")


def _check_run(task: Any, name: str, length: int) -> None:
    """Refuse changed settings that contradict the command, before anything is trained."""
    config = task.config
    encoder = config.positions.encoder
    problem = None
    if config.model.name != name:
        problem = f"model.name must be {name}, the MODEL, but is {config.model.name}"
    elif not isinstance(encoder, PhaseFlowConfig) or not encoder.learned:
        problem = "positions.encoder must be learned phases, but is not"
    elif config.max_length > length or (config.valid_length or config.max_length) > length:
        problem = f"max_length and valid_length must be at most --length, {length:,}"
    elif len(task.seeds()) != 1:
        problem = f"compare.seeds must be one seed, but are {len(task.seeds())}"
    if problem is not None:
        raise ArgumentError(f"`--set`: {problem}; leave it out.")


def _write(model: Any, where: str, length: int, trained: int, out: Path) -> None:
    """Write the model, its tokenizer and a figure of its phases."""
    tokenizer = load_tokenizer(where, pads=False)
    tokenizer.model_max_length = length
    save_pretrained(model, out)
    tokenizer.save_pretrained(str(out))
    _draw(model, length, trained, out / _FIGURE)


def _config(where: str) -> Any:
    with reading(f"The config of {where}", ConfigError, "check its config.json."):
        return AutoConfig.from_pretrained(where, trust_remote_code=False)


def _check_length(settings: Any, name: str, length: int) -> int:
    """The number of positions of a model; refuses models and lengths that do not fit."""
    layout = LAYOUTS.get(getattr(settings, "model_type", ""))
    if layout is None or not layout.rotary:
        raise ConfigError(
            f"`MODEL` must have rotary positions, of one of the architectures "
            f"{', '.join(key for key, own in LAYOUTS.items() if own.rotary)}, but {name} is of the "
            f"architecture {settings.model_type}."
        )
    trained = getattr(settings, "max_position_embeddings", None)
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


def _head(settings: Any, name: str) -> tuple[str, Any]:
    """The task and the class of a model by the head that it was saved with."""
    classes = [str(each) for each in getattr(settings, "architectures", None) or ()]
    if any(each.endswith(("ForCausalLM", "LMHeadModel")) for each in classes):
        return "causal_lm", AutoModelForCausalLM
    if any(each.endswith("ForMaskedLM") for each in classes):
        return "masked_lm", AutoModelForMaskedLM
    raise ConfigError(
        f"`MODEL` must be a causal or masked language model, but {name} is a "
        f"{' or '.join(classes) or 'model without a class'}."
    )


def _settings(
    task: str,
    name: str,
    length: int,
    trained: int,
    text: Sequence[Path],
    valid: Sequence[Path],
    scaling: str,
    updates: int,
) -> dict[str, Any]:
    """Settings of a run that trains the clocks on windows of the model's own length."""
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
                "kind": "phases",
                "scaling": scaling,
                "factor": length / trained,
                "length": trained,
            },
            "sites": "phases",
            "jitter": {"gaps": 1, "until": length},
        },
        "training": {
            "updates": updates,
            "batch": 8,
            "lr": 0.005,
            "evaluate_every": updates,
            "save_every": max(updates // 4, 1),
        },
        "compare": {"seeds": [0]},
    }


def _print_losses(task: Any, folder: Path, console: Console) -> None:
    """A table of the held-out loss by position, for every variant."""
    measures = [name for name in task.measures if name.startswith("loss")]
    table = Table(title="held-out loss by position, nats per token")
    for heading in ("phases", *(name.replace("loss ", "") for name in measures)):
        table.add_column(heading, justify="left" if heading == "phases" else "right")
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


@torch.no_grad()
def _draw(model: Any, length: int, trained: int, path: Path) -> None:
    """Draw how far each clock has run, and how fast it runs, by position."""
    attached = attachment(model)
    encoder = None if attached is None else attached.encoders["phases"]
    if not isinstance(encoder, PhaseFlow):
        raise RunError(f"{path.parent} must hold a model with phases, but does not.")
    clocks = encoder.clocks(length + 1).numpy()
    chosen = np.unique(np.linspace(0, encoder.dim - 1, _LINES).round().astype(int))
    figure, (left, right) = grid(2)
    for place in chosen:
        period = 2 * np.pi / float(encoder.frequencies[place])
        label = f"turns once in {period:,.0f} tokens"
        left.plot(clocks[:, place], label=label)
        right.plot(np.diff(clocks[:, place]), label=label)
    for axis, title in ((left, "clock, in tokens"), (right, "speed of the clock")):
        axis.axvline(trained, linestyle="--", color="grey", linewidth=1)
        axis.set_xlabel("position; dashed: the length of the model")
        axis.set_title(title, fontsize=11)
        axis.grid(alpha=0.3)
    left.legend(fontsize=7)
    save(figure, path)
