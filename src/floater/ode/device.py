"""Numbers that the host computes for the device of a solve, copied there without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def runs_ahead(tensor: Tensor) -> bool:
    """Return whether the host queues the operations of this tensor's device and runs ahead of them,
    so that reading a result makes it wait.
    """
    return tensor.device.type != "cpu"


def to_device(
    values: NDArray[Any] | Tensor, like: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Copy numbers of the host to where a tensor is.

    Args:
        values: what to copy.
        like: its device, and by default its type.
        dtype: another type.
    """
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    host = host.to(dtype or like.dtype)  # first: not all devices have float64
    if not runs_ahead(like):
        return host
    if like.device.type == "cuda":
        host = host.pin_memory()  # only then does the copy not wait
    return host.to(like.device, non_blocking=True)
