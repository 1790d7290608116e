"""States at requested times, interpolated from the polynomials of the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import runs_ahead
from .kernel import mix, pick
from .output_rows import OutputPlaces, OutputRows, index
from .stepper import Stepper

# Rows evaluated by one product: always the same number, so that the bits of a row do not depend on
# how many rows are requested.
_ROWS_PER_PRODUCT = 16


@dataclass(frozen=True)
class OutputRequest:
    """Times at which states are requested.

    Attributes:
        times: the times as requested, of any shape and order.
        ascending: the same times, flat and sorted, float64.
        order: index in the flat `times` of each of `ascending`; None if these are sorted already.
    """

    times: Tensor
    ascending: NDArray[np.float64]
    order: NDArray[np.int64] | None

    @classmethod
    def of(cls, times: Tensor, flat: NDArray[np.float64]) -> OutputRequest:
        """Build the request for `times`, which are `flat` as a flat array."""
        if not np.any(np.diff(flat) < 0):
            return cls(times, flat, None)
        order = np.argsort(flat, kind="stable")
        return cls(times, flat[order], order)

    def __len__(self) -> int:
        return len(self.ascending)


def evaluate(stepper: Stepper, request: OutputRequest) -> Tensor:
    """Return the states [len(request), size], in the order requested; takes steps where needed.

    Without `keep_dense`, a stepper can serve only one request.
    """
    writer = _StateWriter(stepper, request)
    if len(request) == 0:
        return writer.out
    if stepper.keep_dense and stepper.mixes and request.order is None:
        stepper.advance(float(request.ascending[-1]))
        _pick_all(stepper, request, writer.out)
        return writer.out
    if stepper.keep_dense and runs_ahead(writer.out):
        stepper.advance(float(request.ascending[-1]))
        if _write_at_once(stepper, request, writer.out):
            return writer.out
    for step in range(stepper.steps if stepper.keep_dense else 0):
        if writer.written == len(request):
            return writer.out
        writer.write(step, stepper.dense.window(step))
    stepper.advance(float(request.ascending[-1]), writer.write)
    if writer.written < len(request):  # no step was needed: all times are the start
        writer.out[writer.written :] = stepper.field.initial
    return writer.out


def _pick_all(stepper: Stepper, request: OutputRequest, out: Tensor) -> None:
    """Evaluate all states with the kernel, at times that are sorted."""
    if not stepper.steps:  # all times are the start
        out[:] = stepper.field.initial
    for first, count, polynomials in stepper.dense.blocks(stepper.steps):
        found = OutputPlaces.of(stepper, request.ascending, first, count)
        if found is not None:
            pick(found.powers, found.places, polynomials, out=out[found.times])


def _write_at_once(stepper: Stepper, request: OutputRequest, out: Tensor) -> bool:
    """Evaluate all states with a few operations; whether that was done."""
    reached = int(np.searchsorted(stepper.grid[1:], request.ascending[-1], side="left")) + 1
    if reached > stepper.steps:
        return False
    blocks = []
    for first, count, polynomials in stepper.dense.blocks(reached):
        rows = OutputRows.of(stepper, request.ascending, first, count)
        if rows is not None and rows.wasteful:
            return False
        blocks.append((rows, polynomials.view(count, -1, out.shape[1])))
    for rows, polynomials in blocks:
        if rows is None:
            continue
        steps, powers = rows.on_device(out)
        states = (powers @ polynomials[steps]).view(-1, out.shape[1])
        numbers = rows.times[rows.places]
        targets = numbers if request.order is None else request.order[numbers]
        out.index_copy_(0, index(targets, out), states[index(rows.places, out)])
    return True


class _StateWriter:
    """Writes the states inside one step after the other."""

    def __init__(self, stepper: Stepper, request: OutputRequest) -> None:
        self._stepper, self._request = stepper, request
        initial = stepper.field.initial
        self.out = initial.new_empty(len(request), initial.numel())
        self._scratch = self.out.new_empty(_ROWS_PER_PRODUCT, self.out.shape[1])
        self.written = 0

    def write(self, step: int, polynomial: Tensor) -> None:
        """Evaluate the polynomial of a step at the requested times inside it."""
        stepper, times, order = self._stepper, self._request.ascending, self._request.order
        begin = self.written
        end = self.written = int(np.searchsorted(times, stepper.grid[step + 1], side="right"))
        if begin == end:
            return
        theta = (times[begin:end] - stepper.grid[step]) / stepper.lengths[step]
        if order is None and stepper.mixes:
            powers = np.vander(theta, len(polynomial), increasing=True)
            mix(torch.from_numpy(powers).float(), polynomial, self.out[begin:end])
            return
        padded = _padded_powers(theta, len(polynomial)).to(self.out.device, self.out.dtype)
        for first in range(0, end - begin, _ROWS_PER_PRODUCT):
            last = min(begin + first + _ROWS_PER_PRODUCT, end)
            self._write_rows(
                padded[first : first + _ROWS_PER_PRODUCT], polynomial, begin + first, last
            )

    def _write_rows(self, powers: Tensor, polynomial: Tensor, begin: int, end: int) -> None:
        order = self._request.order
        if order is None and end - begin == _ROWS_PER_PRODUCT:
            torch.mm(powers, polynomial, out=self.out[begin:end])
            return
        states = torch.mm(powers, polynomial, out=self._scratch)[: end - begin]
        if order is None:
            self.out[begin:end] = states
        else:
            self.out[torch.from_numpy(order[begin:end]).to(self.out.device)] = states


def _padded_powers(theta: NDArray[np.float64], count: int) -> Tensor:
    """Return 1, θ, θ² … [n, count], with rows of zeros up to a multiple of `_ROWS_PER_PRODUCT`."""
    rows = -(-len(theta) // _ROWS_PER_PRODUCT) * _ROWS_PER_PRODUCT
    powers = np.zeros((rows, count))
    powers[: len(theta)] = np.vander(theta, count, increasing=True)
    return torch.from_numpy(powers)
