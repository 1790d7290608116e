"""The compiled library, where it was built and the machine can run it.

`FLOATER_KERNEL=0` leaves it aside in every solve that begins from then on; one that has begun goes
on as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PANEL = 16
"""Sizes must be multiples of this."""


def library() -> Any:
    """The library for a new solve, None if there is none that works here or it is not wanted."""
    return None if os.environ.get("FLOATER_KERNEL") == "0" else loaded()


def loaded() -> Any:
    """The library for a solve that began with it, whatever `FLOATER_KERNEL` says by now."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


_loaded: list[Any] = []


def _load() -> Any:
    places = [
        Path(__file__).with_name(f"_kernel{suffix}")
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
    ]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        return None
    try:
        opened = ctypes.CDLL(str(found))
        if not opened.floater_usable():
            return None
    except (OSError, AttributeError):
        return None
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    with contextlib.suppress(
        AttributeError, OSError, TypeError
    ):  # torch's own threads; without them the kernel uses one
        opened.floater_threads(
            *(ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p) for name in names)
        )
    return opened


def at(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor lies."""
    return ctypes.c_void_p(tensor.data_ptr())


def pack(matrix: Tensor) -> Tensor:
    """A matrix [depth, width] by panels of 16 columns, as the library wants it."""
    packed = torch.empty(matrix.numel())
    sizes = (*matrix.shape, *matrix.stride())
    loaded().floater_pack(at(matrix), *map(ctypes.c_long, sizes), at(packed))
    return packed


def mixes(rows: Tensor) -> bool:
    """Whether `mix` takes rows like these."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.shape[-1] % PANEL == 0
        and rows.numel() > 0
        and library() is not None
    )


def mix(weights: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """weights [n, m] · rows [m, size] for small n and m, all in one piece; a row of it does not
    depend on the others.
    """
    sizes = (*weights.shape, rows.shape[1])
    loaded().floater_mix(
        at(weights), at(rows), at(out), *map(ctypes.c_long, sizes), torch.get_num_threads()
    )
    return out
