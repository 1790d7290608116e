"""Average the weights of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import RunError
from ..files import check_hashes, reading
from .checkpoints import GO_BACK


def average(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the floating-point weights, computed in float64; other tensors are those of the
    last checkpoint.
    """
    if not checkpoints:
        raise RunError("There is no checkpoint to average.")
    total: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for folder in checkpoints:
        last = weights_of(folder, GO_BACK)
        if total and total.keys() != last.keys():
            odd = sorted(total.keys() ^ last.keys())[0]
            raise RunError(
                f"{folder} does not hold the same weights as {checkpoints[0]}: {odd} is in one of "
                "them only."
            )
        for name, tensor in last.items():
            if name in total and total[name].shape != tensor.shape:
                raise RunError(f"{folder} does not fit {checkpoints[0]}: {name} has another shape.")
            total[name] = (
                total[name] + tensor.to(torch.float64)
                if name in total
                else tensor.to(torch.float64)
            )
    return {
        name: (
            (total[name] / len(checkpoints)).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor
        )
        for name, tensor in last.items()
    }


def weights_of(folder: Path, advice: str) -> dict[str, Tensor]:
    """Load the weights in a folder, and check their hashes and that they are finite.

    Args:
        folder: of a checkpoint or a saved model.
        advice: what to do about damaged weights, the end of the message.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise RunError(f"{folder} must hold weights (model.safetensors), but holds none.")
    check_hashes(folder, RunError, advice)
    with reading(f"{folder}, whose weights are damaged,", RunError, advice):
        weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RunError(f"{folder} must hold finite weights, but {name} is not; {advice}")
    return weights
