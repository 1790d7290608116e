"""The weights, baked encodings and range of training of a saved attachment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..encoders import Encoder
from ..errors import ArgumentError, SavedError, first_line
from ..files import file_hash
from .attachment import Attachment
from .building import WeightsMismatch
from .context import NAME
from .saving import CONFIG_FILE, WEIGHTS_FILE


def read_weights(folder: Path, description: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a saved attachment, or of one in a Trainer checkpoint."""
    file = folder / WEIGHTS_FILE
    if (folder / CONFIG_FILE).exists():
        if not file.exists():
            raise SavedError(f"{folder} must hold {WEIGHTS_FILE}, but does not.")
        if "weights_sha256" in description and file_hash(file) != description["weights_sha256"]:
            raise SavedError(
                f"{file} is damaged or was changed after it was saved: its hash is not the one in "
                f"{CONFIG_FILE}."
            )
        return _load_file(file)
    prefix = f"{NAME}.encoders."  # a Trainer checkpoint: everything is in the model's files
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("model*.safetensors")):
        tensors |= {
            name.removeprefix(prefix): tensor
            for name, tensor in _load_file(shard).items()
            if name.startswith(prefix) or name == _TIMES
        }
    return tensors


_TIMES = f"{NAME}.trained_times.bits"
"""Name of the range of training in a Trainer checkpoint."""


def _load_file(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise SavedError(f"{file} is damaged: {first_line(error)}.") from None


def load_weights(
    attached: Attachment,
    folder: Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> None:
    """Load the weights and baked encodings, and refuse what does not fit the description."""
    baked = {
        name.removeprefix("baked."): tensor
        for name, tensor in tensors.items()
        if name.startswith("baked.")
    }
    weights = {
        name: tensor
        for name, tensor in tensors.items()
        if name != _TIMES and not name.startswith("baked.")
    }
    try:
        attached.encoders.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise WeightsMismatch(
            f"The weights in {folder} do not fit their description: {first_line(error, 1)}"
        ) from None
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SavedError(
                f"{folder / WEIGHTS_FILE} must hold finite weights, but {name} is not finite; save "
                "the model again."
            )
    if "baked" in description and (description["baked"] is not None) != bool(baked):
        raise SavedError(
            f"{folder / WEIGHTS_FILE} must hold baked encodings if and only if {CONFIG_FILE} has "
            "`baked`, but they disagree; save the model again."
        )
    if baked:
        _check_baked(attached, folder, baked, description)
        parameter = next(attached.encoders.parameters(), None)
        if parameter is not None:
            baked = {name: table.to(parameter.device) for name, table in baked.items()}
        attached.set_baked(baked)


def load_range(
    attached: Attachment,
    folder: Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> None:
    """Restore the range of training: from the description, or from a Trainer checkpoint."""
    times = attached.trained_times
    try:
        if "range" in description:
            times.set(description["range"])
        elif _TIMES in tensors:
            times.bits.copy_(tensors[_TIMES])
            times.set(times.known())  # refuses what is not a number
        else:
            times.lost = True
    except (ArgumentError, RuntimeError) as error:
        raise SavedError(
            f"The range of training in {folder} is damaged: {first_line(error)}"
        ) from None


def _check_baked(
    attached: Attachment,
    folder: Path,
    baked: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> None:
    """Refuse baked encodings that do not belong to this attachment."""
    encoders = {
        name: encoder for name, encoder in attached.encoders.items() if isinstance(encoder, Encoder)
    }
    if baked.keys() != encoders.keys():
        raise SavedError(
            f"{folder / WEIGHTS_FILE} must hold baked encodings of {', '.join(encoders)}, but has "
            f"{', '.join(baked)}; save the model again."
        )
    for name, table in baked.items():
        shape = (description.get("baked", len(table)), encoders[name].sites, encoders[name].dim)
        fits = tuple(table.shape) == shape
        if not (fits and table.is_floating_point() and bool(torch.isfinite(table).all())):
            raise SavedError(
                f"{folder / WEIGHTS_FILE} must hold finite baked encodings of shape {shape}, but "
                f"those of {name!r} are {table.dtype} of shape {tuple(table.shape)}"
                f"{', not all finite' if fits else ''}; save the model again."
            )
