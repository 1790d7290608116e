"""The model of a translation run: the mean of its last checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...attachments import from_pretrained, save_pretrained
from ...errors import RunError
from ...files import HASHES, new_folder, reading, record_hashes, sync, write_text
from ...runs.checked_json import read_checked
from ...runs.folder import RunFolder
from ...runs.locks import in_use
from ...training.average import average
from ...training.checkpoints import GO_BACK, checkpoints
from ...training.extract_encodings import store_encodings
from ...training.process import process_settings
from .model import MarianMTModel

AVERAGED = "averaged.json"
"""File of a model that `floater average --out` wrote: the run, and its checkpoints."""


def averaged_model(paths: Sequence[Path]) -> MarianMTModel:
    """The mean of some checkpoints, ready for evaluation."""
    weights = average(paths)
    with process_settings(), reading(paths[-1], RunError, GO_BACK):
        model: MarianMTModel = from_pretrained(MarianMTModel, paths[-1])
        missing = model.load_state_dict(weights, strict=False).missing_keys
    lost = [
        name
        for name in missing
        if "embed_" not in name and name != "lm_head.weight" and not name.endswith("logits_bias")
    ]
    if lost:
        raise RunError(f"{paths[-1]} does not hold {lost[0]}.")
    model.tie_weights()
    model.config._name_or_path = ""  # a checkpoint is no base that a model card should name
    model.train(False)
    return model


def save_averaged(folder: RunFolder, model: MarianMTModel, paths: Sequence[Path]) -> None:
    """Make the mean of some checkpoints the run's model, and store its encodings.

    Scores of another model are moved aside.
    """
    names = [path.name for path in paths]
    with new_folder(folder.model) as temporary:
        save_pretrained(model, temporary)
        record_hashes(temporary)
        sync(temporary)
        if folder.facts().get("averaged") != names:
            folder.retire_scores()  # only after everything else is safely written
    folder.note(averaged=names)
    store_encodings(folder, model)


def average_run(folder: RunFolder, last: int, out: Path | None = None) -> Path:
    """Average the last checkpoints of a run; `floater average`.

    Args:
        folder: the run's.
        last: number of checkpoints.
        out: folder for the model; None replaces the run's own.

    Returns:
        The folder of the model.
    """
    with in_use(folder.path, "average"), process_settings():
        existing = checkpoints(folder.checkpoints)
        if not existing:
            raise RunError(f"{folder.path} must hold checkpoints to average, but holds none.")
        if len(existing) < last:
            raise RunError(
                f"{folder.path} holds {len(existing)} checkpoints, but {last} are to be averaged; "
                f"give --last {len(existing)}."
            )
        paths = existing[-last:]
        if out is None:
            save_averaged(folder, averaged_model(paths), paths)
            return folder.model
        names = [path.name for path in paths]
        record = {"format": 1, "run": folder.identity(), "checkpoints": names}
        _check_replaceable(out, record)
        model = averaged_model(paths)
        with new_folder(out) as temporary:
            save_pretrained(model, temporary)
            write_text(temporary / AVERAGED, json.dumps(record, indent=2) + "\n")
            record_hashes(temporary)
            sync(temporary)
        return out


def _check_replaceable(out: Path, record: dict[str, Any]) -> None:
    """Refuse to replace anything but an earlier averaged model of the same run."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / AVERAGED).is_file():
        raise RunError(
            f"{out} exists and is not an averaged model of this run; choose a new folder."
        )
    if read_checked(out / AVERAGED).get("run") != record["run"]:
        raise RunError(
            f"{out} exists and is an averaged model of another run; choose a new folder."
        )
    recorded = read_checked(out / HASHES).get("sha256")
    ours = {*(recorded if isinstance(recorded, dict) else ()), HASHES, "README.md"}
    others = sorted(path.name for path in out.iterdir() if path.name not in ours)
    if others:
        raise RunError(
            f"{out} is an averaged model, but also holds {others[0]}, which would be lost; choose "
            "a new folder."
        )
