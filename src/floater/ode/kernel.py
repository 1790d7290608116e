"""The compiled kernel for the stages of a step, where it was built and the machine can run it.

`FLOATER_KERNEL=0` leaves it aside; steps are then made of tensor operations, with the same results to rounding.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_PANEL = 16
_NUMBERS = {"tanh": 0, "relu": 1}  # the nonlinearities it knows


class Kernel:
    """A packed square matrix B, and the stages of a step whose slopes are act(·)·B.

    Args:
        matrix: B [hidden, hidden], float32.
        activation: name of the nonlinearity.
    """

    def __init__(self, matrix: Tensor, activation: str) -> None:
        self._library = _library()
        self._hidden = matrix.shape[0]
        self._activation = _NUMBERS[activation]
        self._packed = self._pack(matrix)
        self._back: Tensor | None = None
        self._matrix = matrix

    @staticmethod
    def serves(matrix: Tensor, activation: str) -> bool:
        """Whether there is a kernel for this matrix and nonlinearity."""
        return (
            activation in _NUMBERS
            and matrix.dtype == torch.float32
            and matrix.device.type == "cpu"
            and matrix.shape[0] % _PANEL == 0
            and _library() is not None
        )

    def _pack(self, matrix: Tensor) -> Tensor:
        packed = torch.empty(self._hidden * self._hidden)
        self._library.floater_pack(_at(matrix), _long(self._hidden), *map(_long, matrix.stride()), _at(packed))
        return packed

    def forward(self, terms: Tensor, weights: Tensor, kept: Tensor) -> None:
        """All stages but the first: kept[s] = act(Σ_j weights[s, j]·terms[j]); the last rows of `terms` get the slopes kept[s]·B.

        Args:
            terms: rows [c + S, rows·hidden], of which the last S are slopes.
            weights: [S, c + S].
            kept: [S, rows·hidden].
        """
        stages = len(kept)
        sizes = (len(terms) - stages, stages, kept.shape[1] // self._hidden, self._hidden)
        self._library.floater_forward(
            _at(self._packed), _at(terms), _at(weights), _at(kept), *map(_long, sizes), self._activation, torch.get_num_threads()
        )

    def reverse(
        self, tail: Tensor, reach: Tensor, slopes: Tensor, following: Tensor, spread: Tensor, shared: Tensor, derivative: Tensor
    ) -> None:
        """The reverse of :meth:`forward`; see `Reverse.step` for what the rows are."""
        if self._back is None:
            self._back = self._pack(self._matrix.t())
        rows = (tail, reach, slopes, following, spread, shared, derivative)
        sizes = (len(tail), tail.shape[1] // self._hidden, self._hidden)
        self._library.floater_reverse(_at(self._back), *map(_at, rows), *map(_long, sizes), torch.get_num_threads())


_long = ctypes.c_long


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


_loaded: dict[str, Any] = {}


def _library() -> Any:
    """The compiled library, None if there is none that works here."""
    if os.environ.get("FLOATER_KERNEL") == "0":
        return None
    if "library" not in _loaded:
        _loaded["library"] = _load()
    return _loaded["library"]


def _load() -> Any:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernel{suffix}")
        if path.exists():
            break
    else:
        return None
    try:
        library = ctypes.CDLL(str(path))
        if not library.floater_usable():
            return None
    except (OSError, AttributeError):
        return None
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    try:  # torch's own threads; without them the kernel uses one
        library.floater_threads(*(ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p) for name in names))
    except (AttributeError, OSError, TypeError):
        pass
    return library
