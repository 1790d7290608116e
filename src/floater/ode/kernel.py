"""The C kernel: loads the library, where it was built and the machine can run it.

With `FLOATER_KERNEL=0` new solves do not use it; a solve that has begun continues as before.
`FLOATER_KERNEL=avx2` and `=avx512`, set before the first solve, choose the instructions; by default
the faster ones are found out, in less than a millisecond. Results are the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, caller_level

_REGISTERS = {"avx2": 8, "avx512": 16}  # numbers in a register
PANEL = 16
"""Sizes must be multiples of this."""
_FUNCTIONS = (
    "threads",
    "pack",
    "mix",
    "add_outer",
    "pick_turned",
    "unpick_turned",
    "stage",
    "unstage",
    "attempt",
    "reverse_steps",
)
MOST_STAGES = 16
"""Methods with more are not supported."""
_DEPTH = 256  # rows that the kernel's scratch for `add_outer` holds


def library() -> Any:
    """Return the library for a new solve; None if there is none or `FLOATER_KERNEL` is 0."""
    return None if _wish() == "0" else loaded()


def kernel_is_missing() -> bool:
    """Return whether solves on the CPU have to do without the kernel although nobody asked for it:
    it was not built, or this processor cannot run it.
    """
    return _wish() != "0" and loaded() is None


def _wish() -> str:
    """What the user wants of the kernel."""
    wish = os.environ.get("FLOATER_KERNEL", "")
    if wish not in ("", "0", "1", *_REGISTERS):
        raise ArgumentError(
            f"`FLOATER_KERNEL` must be 0, 1, {' or '.join(_REGISTERS)}, but is {wish!r}."
        )
    return wish


def loaded() -> Any:
    """Return the library for a solve that began with it, whatever `FLOATER_KERNEL` is now."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


_loaded: list[Any] = []


def _load() -> Any:
    candidates = (
        Path(__file__).with_name(f"_kernel{suffix}")
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
    )
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        return None
    try:
        opened = ctypes.CDLL(str(path))
        width = _REGISTERS.get(_wish(), 0)
        if not opened.floater_usable(width):
            return None
    except (OSError, AttributeError):
        return None
    if missing := [name for name in _FUNCTIONS if not hasattr(opened, f"floater_{name}")]:
        warnings.warn(
            f"The compiled kernel {path} is that of another version (it has no {missing[0]}), so "
            "tensor operations take its place, which are slower; install floater again.",
            stacklevel=caller_level(),
        )
        return None
    # The kernel borrows torch's OpenMP threads; without them it uses a single thread.
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    with contextlib.suppress(AttributeError, OSError, TypeError):
        opened.floater_threads(
            *(ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p) for name in names)
        )
    return opened


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's data."""
    return ctypes.c_void_p(tensor.data_ptr())


def pack(matrix: Tensor) -> Tensor:
    """Copy a matrix [depth, width] into panels of 16 columns, the layout the kernel works on."""
    packed = torch.empty(matrix.numel())
    sizes = (*matrix.shape, *matrix.stride())
    loaded().floater_pack(address(matrix), *map(ctypes.c_long, sizes), address(packed))
    return packed


def attempt(*arguments: int | float) -> None:
    """Compute a step, its polynomial and its error; see `floater_attempt` in the kernel.

    The arguments are addresses and numbers. They are declared once, which saves a good part of the
    time that a call takes.
    """
    function = loaded().floater_attempt
    if function.argtypes is None:
        function.argtypes = (
            *[ctypes.c_void_p] * 15,
            *[ctypes.c_long] * 4,
            *[ctypes.c_int] * 2,
            ctypes.c_long,
            ctypes.c_double,
            *[ctypes.c_float] * 2,
        )
    function(*arguments)


def mixes(rows: Tensor) -> bool:
    """Return whether `mix` supports rows like these."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.shape[-1] % PANEL == 0
        and rows.numel() > 0
        and library() is not None
    )


def mix(weights: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """Compute weights [n, m] · rows [m, size] for small n and m, all of them contiguous.

    A row of the result does not depend on the others.
    """
    sizes = (*weights.shape, rows.shape[1])
    pointers = (address(weights), address(rows), address(out))
    loaded().floater_mix(*pointers, *map(ctypes.c_long, sizes), torch.get_num_threads())
    return out


def add_outer(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Add leftᵀ [n, count] · right [count, m] to `out` [n, m], where n and m are multiples of 16.

    `left` and `right` may be some columns of longer rows; `out` is contiguous.
    """
    groups = left.new_empty(left.shape[1] * _DEPTH)
    sizes = (*left.shape, right.shape[1], left.stride(0), right.stride(0))
    pointers = map(address, (left, right, out, groups))
    loaded().floater_add_outer(*pointers, *map(ctypes.c_long, sizes), torch.get_num_threads())


def picks(rows: Tensor) -> bool:
    """Return whether `pick` supports rows like these, which may be some columns of longer ones."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.dim() == 2
        and rows.shape[1] % PANEL == 0
        and rows.numel() > 0
        and rows.stride(1) == 1
        and library() is not None
    )


def pick(
    weights: Tensor,
    places: Tensor,
    rows: Tensor,
    bias: Tensor | None = None,
    angles: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute sums [n, size], each of the m rows from its place on, times its weights [n, m].

    Pairs of their columns are turned by the angles of complex numbers of size 1 [n, size / 2] if
    there are any; then a contiguous bias [size] is added if there is one. A sum does not depend on
    the others. They are written to `out`, which is contiguous, if it is given.
    """
    sums = rows.new_empty(len(places), rows.shape[1]) if out is None else out
    _pick("floater_pick_turned", weights, places, rows, sums, bias, angles)
    return sums


def unpick(
    weights: Tensor, places: Tensor, sums: Tensor, count: int, angles: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the transpose of `pick`: from the cotangents of sums, those of `count` rows and of
    the bias.
    """
    rows, bias = sums.new_zeros(count, sums.shape[1]), sums.new_zeros(sums.shape[1])
    _pick("floater_unpick_turned", weights, places, rows, sums.contiguous(), bias, angles)
    return rows, bias


def unpick_rows(weights: Tensor, places: Tensor, sums: Tensor, count: int) -> Tensor:
    """Compute the cotangents of `count` rows alone."""
    rows = sums.new_zeros(count, sums.shape[1])
    _pick("floater_unpick_turned", weights, places, rows, sums.contiguous(), None, None)
    return rows


def _pick(
    name: str,
    weights: Tensor,
    places: Tensor,
    rows: Tensor,
    sums: Tensor,
    bias: Tensor | None,
    angles: Tensor | None,
) -> None:
    pointers = map(address, (weights, places, rows, sums))
    sizes = map(ctypes.c_long, (*weights.shape, sums.shape[1], rows.stride(0)))
    more = (ctypes.c_void_p() if given is None else address(given) for given in (bias, angles))
    getattr(loaded(), name)(*pointers, *sizes, torch.get_num_threads(), *more)
