"""An MLP's steps by the C kernel; without it tensor operations give the same results to rounding.

The kernel's thin products run at full speed, so it integrates p itself: integrating W₁p instead,
which saves thin products but adds wide ones, would not pay off here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .activations import Activation
from .fields import (
    Attempt,
    Carry,
    Reverse,
    StageBlock,
    Stages,
    StageTerms,
    StepError,
    WholeSteps,
)
from .kernel import MOST_STAGES, PANEL, add_outer, address, attempt, library, loaded, mix, pack
from .mlp_field import MLP, HiddenNorms, MLPField, MLPReverse, TensorMLPField, hidden_layer_error
from .tableaus import Tableau

_ACTIVATION_NUMBERS = {"tanh": 0, "relu": 1}  # as the kernel numbers them


def fastest_mlp_field(
    dim: int, hidden: int, activation: Activation, like: Tensor
) -> type[KernelMLPField] | type[TensorMLPField]:
    """Return the fastest implementation for an MLP of this size, with states like this one."""
    supported = (
        activation.name in _ACTIVATION_NUMBERS
        and like.dtype == torch.float32
        and like.device.type == "cpu"
        and dim % PANEL == 0
        and hidden % PANEL == 0
        and library() is not None
    )
    return KernelMLPField if supported else TensorMLPField


class KernelMLPField(MLPField):
    """An MLP's steps by the kernel; a stage records p and act(·), side by side per trajectory."""

    def __init__(self, initial: Tensor, mlp: MLP) -> None:
        super().__init__(initial, mlp)
        self.width = self.initial.numel()
        self.tape_width = self.width + self.rows * self.hidden
        self.constants = self.initial.new_empty(0, self.width)
        self.activation_number = _ACTIVATION_NUMBERS[self.activation.name]
        with torch.no_grad():
            self.packed = pack(self.w1.t()), pack(self.w2.t())
            self.shifts = torch.stack((self.b1, self.v1)), torch.stack((self.b2, self.v2))

    def enter(self) -> Tensor:
        return self.initial.clone()

    def stage(self, time: float, slope: Tensor, tape: Tensor) -> None:
        # The inner state arrives contiguous; on the tape the rows of p lie apart.
        by_trajectory = tape.view(self.rows, self.dim + self.hidden)
        by_trajectory[:, : self.dim] = tape[: self.width].view(self.rows, self.dim).clone()
        seen = torch.tensor([1.0, self.view(time)])
        self.call("stage", (*self.packed, *(seen @ shift for shift in self.shifts), tape, slope), 1)

    def whole_steps(
        self,
        tableau: Tableau,
        sums: Tensor,
        terms: StageTerms,
        tolerances: tuple[float, float],
    ) -> WholeSteps:
        return _KernelSteps(self, tableau, sums, terms, tolerances)

    def call(self, name: str, tensors: Sequence[Tensor], stages: int, *numbers: Any) -> None:
        """Run one of the kernel's functions."""
        sizes = (stages, self.rows, self.dim, self.hidden)
        function = getattr(loaded(), f"floater_{name}")
        function(
            *map(address, tensors),
            *map(ctypes.c_long, sizes),
            self.activation_number,
            torch.get_num_threads(),
            *numbers,
        )

    def states(self, tape: Tensor) -> Tensor:
        """Return p of stages, from their tape [n, tape_width]: one row per stage and trajectory."""
        return tape.view(-1, self.dim + self.hidden)[:, : self.dim]

    def activations(self, tape: Tensor) -> Tensor:
        """Return act(·) of stages, in the same layout."""
        return tape.view(-1, self.dim + self.hidden)[:, self.dim :]

    def combine(self, weights: Tensor, constants: Tensor, stages: Stages) -> Tensor:
        return mix(weights, stages.slopes, stages.slopes.new_empty(len(weights), self.width))

    def reverse(self) -> Reverse:
        return _KernelMLPReverse(self)


class _KernelSteps(WholeSteps):
    """A step, its polynomial and its error in one call."""

    def __init__(
        self,
        field: KernelMLPField,
        tableau: Tableau,
        sums: Tensor,
        terms: StageTerms,
        tolerances: tuple[float, float],
    ) -> None:
        assert tableau.stages <= MOST_STAGES
        self._field, self._terms, self._sums = field, terms, sums
        self._inner = terms.inner.view(field.rows, field.dim)
        self._coupling = torch.tensor(tableau.coupling, dtype=torch.float64)
        self._seen = torch.empty(tableau.stages)
        self._error = torch.empty_like(field.initial)
        room = tableau.stages * (field.dim + field.hidden) + field.rows * field.hidden
        self._scratch = torch.empty(room)
        panels = max(field.dim, field.hidden) // PANEL if tableau.error is not None else 0
        self._squares = torch.zeros(panels, 5, dtype=torch.float64)
        self._sizes = (tableau.stages, field.rows, field.dim, field.hidden)
        self._degree, self._tolerances = tableau.degree, tolerances

    def attempt(
        self,
        length: float,
        times: Sequence[float],
        before: Tensor,
        polynomial: Tensor,
        tape: Tensor,
    ) -> Attempt:
        field, terms, after = self._field, self._terms, torch.empty_like(before)
        self._seen.numpy()[:] = [field.view(time) for time in times]
        read = (*field.packed, terms.rows, self._coupling, self._sums, *field.shifts, self._seen)
        tensors = (*read, tape, before, polynomial, self._error, after, self._scratch)
        attempt(
            *map(Tensor.data_ptr, tensors),
            self._squares.data_ptr() if len(self._squares) else 0,
            *self._sizes,
            field.activation_number,
            torch.get_num_threads(),
            self._degree,
            length,
            *self._tolerances,
        )
        stages = Stages(times, terms.slopes, tape)
        measured = self._measured() if len(self._squares) else None
        return Attempt(length, before, after, self._error, self._sums[-1:], stages, measured)

    def _measured(self) -> StepError:
        field = self._field
        error, scale_sum, *others = self._squares.numpy().sum(0).tolist()
        activations, integral_error, end_error = map(math.sqrt, others)
        norms = HiddenNorms(activations / math.sqrt(len(self._seen)), integral_error, end_error)
        gradient = hidden_layer_error(norms, field.rows * field.hidden)
        return StepError(math.sqrt(error / max(1, field.width)), scale_sum, gradient)

    def accept(self, tape: Tensor) -> None:
        field, slopes = self._field, self._terms.each_slope
        self._inner.copy_(tape[-1].view(field.rows, -1)[:, : field.dim])
        slopes[0].copy_(slopes[-1])


class _KernelMLPReverse(MLPReverse):
    """Goes back through a step in one call; weight gradients follow in one product per weight.

    Gradients of biases and of v are rows of one tensor: first b, then v.
    """

    def __init__(self, field: KernelMLPField) -> None:
        super().__init__(field)
        self._field = field
        zeros = field.initial.new_zeros
        self._grad_w1, self._grad_w2 = (
            zeros(field.hidden, field.dim),
            zeros(field.dim, field.hidden),
        )
        self._grad_shift1, self._grad_shift2 = zeros(2, field.hidden), zeros(2, field.dim)
        self._first, self._second = pack(field.w1), pack(field.w2)
        self._tape = self._hidden = self._seen_rows = field.initial  # until a block is opened

    def output_cotangents(self, moments: Tensor, weights: Tensor, block: StageBlock) -> Tensor:
        return weights.transpose(1, 2) @ moments

    def open_block(self, block: StageBlock) -> None:
        self._tape = block.tape
        width = self._field.rows * self._field.hidden
        self._hidden = block.tape.new_empty(len(block.tape), width)  # cotangents before act
        self._hidden[0].zero_()  # no step of this block writes its first row
        self._seen_rows = self.seen(block.row_times())

    def stage(self, row: int, slope_cotangent: Tensor, outputs: Tensor, out: Tensor) -> None:
        slope_cotangent += outputs
        rows = (self._tape[row], slope_cotangent, self._hidden[row], out)
        self._field.call("unstage", (self._first, self._second, *rows), 1)

    def steps(self, couplings: Tensor, slopes: Tensor, outputs: Tensor, carry: Carry) -> None:
        rows = (
            carry.tail,
            couplings,
            slopes,
            self._hidden,
            carry.shared_slope,
            outputs,
            carry.shared_outputs,
            self._tape,
        )
        self._field.call(
            "reverse_steps",
            (self._first, self._second, *rows),
            len(carry.tail),
            ctypes.c_long(len(outputs)),
        )
        carry.shared_outputs = outputs[0, 0]

    def gather(self, first_row: int, cotangents: Tensor) -> None:
        return None

    def close_block(self, slope_cotangents: Tensor) -> None:
        field, seen = self._field, self._seen_rows
        rows = len(slope_cotangents) * field.rows
        by_trajectory = slope_cotangents.view(rows, field.dim)
        add_outer(by_trajectory, field.activations(self._tape), self._grad_w2)
        add_outer(self._hidden.view(rows, field.hidden), field.states(self._tape), self._grad_w1)
        self._grad_shift2 += (seen @ slope_cotangents).view(2, -1, field.dim).sum(1)
        self._grad_shift1 += (seen @ self._hidden).view(2, -1, field.hidden).sum(1)

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        bias1, time1 = self._grad_shift1
        bias2, time2 = self._grad_shift2
        weight1 = torch.cat((self._grad_w1, time1.unsqueeze(1)), 1)
        weight2 = torch.cat((self._grad_w2, time2.unsqueeze(1)), 1)
        return inner_cotangent + state_cotangent, (weight1, bias1, weight2, bias2)
