"""Checkpoints: listing, verifying and cleaning up, and the solutions that encoders keep in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerState

from ..attachments import attachment
from ..encoders import Flow
from ..errors import RunError, brief
from ..files import check_hashes, reading
from ..runs.folder import RunFolder

PREFIX = "checkpoint-"
GO_BACK = "remove the folder of that checkpoint, and `--resume` continues from the one before."
"""What to do about a checkpoint that cannot be used."""
SOLUTIONS = "floater_kept.safetensors"
"""File of a checkpoint with the solutions that encoders reuse over several updates."""
_NEEDED = ("config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json")
"""Files without which a resumed run would differ, besides weights and random states."""


def step_of(checkpoint: Path) -> int:
    """The number of updates before a checkpoint."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    paths = folder.glob(f"{PREFIX}*")
    return sorted((p for p in paths if p.name.removeprefix(PREFIX).isdecimal()), key=step_of)


def require_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; at least one must exist."""
    existing = checkpoints(folder)
    if not existing:
        raise RunError(
            f"{folder} must hold a checkpoint, but holds none; `floater train … --resume` starts "
            "over."
        )
    return existing


def verify(checkpoint: Path) -> None:
    """Raise `RunError` if a checkpoint is incomplete or damaged."""
    missing = [name for name in _NEEDED if not (checkpoint / name).is_file()]
    if not any(checkpoint.glob("model*.safetensors")):
        missing.append("model.safetensors")
    if missing:
        raise RunError(f"{checkpoint} must hold {missing[0]}, but does not; {GO_BACK}")
    _verify_random_states(checkpoint)
    check_hashes(checkpoint, RunError, GO_BACK)
    for path in checkpoint.glob("*.safetensors"):
        with (
            reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK),
            safe_open(path, "pt") as file,
        ):
            file.keys()
    for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
        with (
            reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK),
            zipfile.ZipFile(path) as archive,
        ):
            if archive.testzip() is not None:
                raise zipfile.BadZipFile(path.name)
    state_of(checkpoint)


def _verify_random_states(checkpoint: Path) -> None:
    """Each process needs its own random state."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    expected = (
        ["rng_state.pth"]
        if processes == 1
        else [f"rng_state_{number}.pth" for number in range(processes)]
    )
    missing = [name for name in expected if not (checkpoint / name).is_file()]
    if not missing:
        return
    others = len(list(checkpoint.glob("rng_state*.pth")))
    if others and others != processes:
        raise RunError(
            f"{checkpoint} was made by {others} process{'es' if others > 1 else ''}, but "
            f"{processes} would resume it; resume with {others}."
        )
    raise RunError(f"{checkpoint} must hold {missing[0]}, but does not; {GO_BACK}")


_TEMPORARY = re.compile(
    r"\.+(model|vocabulary|attachment|config\.yaml|run\.json|scores\.json|metrics\.jsonl|"
    r"positions\.safetensors)(-\w{8}){1,2}"
)
"""Temporary names of the files of a run, which are renamed when they are complete."""


def remove_incomplete(folder: RunFolder) -> None:
    """Remove what a killed run was writing."""
    incomplete = [*folder.checkpoints.glob(f".{PREFIX}*"), *folder.predictions.glob(".*-????????")]
    incomplete += [path for path in folder.path.glob(".*") if _TEMPORARY.fullmatch(path.name)]
    for path in incomplete:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state in a checkpoint."""
    path = checkpoint / "trainer_state.json"
    with reading(f"{checkpoint} is damaged: {path.name}", RunError, GO_BACK):
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        TrainerState.load_from_json(str(path))
    if state["global_step"] != step_of(checkpoint) or not isinstance(
        state.get("stateful_callbacks", {}), dict
    ):
        raise RunError(
            f"{checkpoint} is damaged: {path.name} must be that of update {step_of(checkpoint)}, "
            f"but is of {brief(state['global_step'])}; {GO_BACK}"
        )
    return state


def save_solutions(model: nn.Module, path: Path) -> None:
    """Write the solutions that encoders reuse over several updates (`keep_for`), if any."""
    tensors = {}
    for name, flow in _flows(model):
        for key, tensor in flow.kept_state().items():
            tensors[f"{name}.{key}"] = tensor
    if tensors:
        save_file(tensors, path)


def load_solutions(model: nn.Module, path: Path) -> None:
    """Restore what `save_solutions` wrote."""
    tensors = load_file(path) if path.exists() else {}
    for name, flow in _flows(model):
        start = f"{name}."
        flow.load_kept_state(
            {
                key.removeprefix(start): tensor
                for key, tensor in tensors.items()
                if key.startswith(start)
            }
        )


def _flows(model: nn.Module) -> Iterator[tuple[str, Flow]]:
    attached = attachment(model)
    if attached is not None:
        for name, module in attached.encoders.items():
            if isinstance(module, Flow):
                yield name, module
