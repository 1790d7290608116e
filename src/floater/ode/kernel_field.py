"""A perceptron's steps by the compiled library; without it they are made of tensor operations, with
the same results to rounding.

The library's thin products run at full speed, so it integrates p itself: the detour over W₁p, which
saves thin products but adds wide ones, does not pay here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .activations import Activation
from .fields import Attempt, Reverse
from .kernel import PANEL, at, library, loaded, mix, pack
from .mlp_field import Perceptron, PerceptronField, PerceptronReverse, weigh_strain

_KNOWN = {"tanh": 0, "relu": 1}  # nonlinearities, as the kernel numbers them


def fastest(dim: int, hidden: int, activation: Activation, like: Tensor) -> type[Perceptron]:
    """The fastest way to step a perceptron of this size, with states like this one."""
    served = (
        activation.name in _KNOWN
        and like.dtype == torch.float32
        and like.device.type == "cpu"
        and dim % PANEL == 0
        and hidden % PANEL == 0
        and library() is not None
    )
    return CompiledField if served else PerceptronField


class CompiledField(Perceptron):
    """h = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂; a stage keeps p and act(·), side by side for
    each trajectory.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.width = self.initial.numel()
        self.kept_width = self.width + self.rows * self.hidden
        self.constants = self.initial.new_empty(0, self.width)
        self.known = _KNOWN[self.activation.name]
        with torch.no_grad():
            self._first, self._second = pack(self.w1.t()), pack(self.w2.t())
            self._room = self.initial.new_empty(self.rows * self.hidden)
            self._biases = torch.stack((self.b1, self.v1)), torch.stack((self.b2, self.v2))

    def enter(self) -> Tensor:
        return self.initial.clone()

    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        both = kept.view(self.rows, self.dim + self.hidden)
        both[:, : self.dim] = (
            kept[: self.width].view(self.rows, self.dim).clone()
        )  # it comes in one piece
        shift, level = self._shifted([time])
        self.call("stage", (self._first, self._second, shift, level, kept, slope), 1)

    def _shifted(self, times: Sequence[float]) -> tuple[Tensor, Tensor]:
        """What time and biases add to both layers [S, hidden] and [S, dim]."""
        seen = torch.tensor([[1.0, self.view(time)] for time in times])
        return seen @ self._biases[0], seen @ self._biases[1]

    def stages(
        self,
        times: Sequence[float],
        terms: Tensor,
        heads: Sequence[Tensor],
        weights: Tensor,
        kept: Tensor,
    ) -> None:
        shifts, levels = self._shifted(times)
        tensors = (self._first, self._second, terms, weights, shifts, levels, kept)
        self.call("forward", tensors, len(times))

    def call(
        self, name: str, tensors: Sequence[Tensor], stages: int, more: Sequence[float] = ()
    ) -> None:
        """Run one of the kernel's functions."""
        sizes = (stages, self.rows, self.dim, self.hidden)
        function = getattr(loaded(), f"floater_{name}")
        function(
            *map(at, tensors),
            *map(ctypes.c_long, sizes),
            self.known,
            torch.get_num_threads(),
            *map(ctypes.c_float, more),
        )

    def states(self, kept: Tensor) -> Tensor:
        """p of stages, from what they kept [n, kept_width]: a row a stage and trajectory."""
        return kept.view(-1, self.dim + self.hidden)[:, : self.dim]

    def outputs(self, kept: Tensor) -> Tensor:
        """act(·) of stages, likewise."""
        return kept.view(-1, self.dim + self.hidden)[:, self.dim :]

    def combine(
        self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor
    ) -> Tensor:
        return mix(weights, slopes, slopes.new_empty(len(weights), self.width))

    def measure(
        self,
        step: Attempt,
        weights: Tensor,
        slopes: Tensor,
        kept: Tensor,
        relative: float,
        absolute: float,
    ) -> tuple[float, float, float]:
        sums = torch.zeros(max(self.dim, self.hidden) // PANEL, 5, dtype=torch.float64)
        tensors = (
            self._first,
            step.error,
            step.before,
            step.after,
            weights,
            kept,
            self._room,
            sums,
        )
        self.call("measure", tensors, len(kept), (relative, absolute))
        error, total, *squares = sums.sum(0).tolist()
        z, integral, value = map(math.sqrt, squares)
        strain = weigh_strain(z, integral, value, self.rows * self.hidden, len(kept))
        return math.sqrt(error / max(1, self.width)), total, strain

    def reverse(self) -> Reverse:
        return _CompiledReverse(self)


class _CompiledReverse(PerceptronReverse):
    """Goes back through a step in one call; weight gradients follow in one product each."""

    def __init__(self, field: CompiledField) -> None:
        super().__init__(field)
        self._field = field
        new = field.initial.new_zeros
        self._grad1, self._grad2 = new(field.hidden, field.dim), new(field.dim, field.hidden)
        self._slope1, self._slope2 = new(2, field.hidden), new(2, field.dim)
        self._first, self._second = pack(field.w1), pack(field.w2)
        self._kept = self._inner = self._seen_rows = field.initial

    def spread(self, moments: Tensor, weights: Tensor, times: Tensor, kept: Tensor) -> Tensor:
        return weights.transpose(1, 2) @ moments

    def open_rows(self, kept: Tensor, times: Tensor) -> None:
        self._kept = kept
        self._inner = kept.new_empty(len(kept), self._field.rows * self._field.hidden)
        self._inner[0].zero_()  # no step of this block writes its first row
        self._seen_rows = self.seen(times)

    def stage(self, row: int, slope_cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        slope_cotangent += spread
        rows = (self._kept[row], slope_cotangent, self._inner[row], out)
        self._field.call("unstage", (self._first, self._second, *rows), 1)

    def step(
        self,
        base: int,
        tail: Tensor,
        reach: Tensor,
        slopes: Tensor,
        following: Tensor,
        spread: Tensor,
        shared: Tensor,
    ) -> None:
        rows = (
            tail,
            reach,
            slopes,
            self._inner[base:],
            following,
            spread,
            shared,
            self._kept[base:],
        )
        self._field.call("reverse", (self._first, self._second, *rows), len(tail))

    def gather(self, first: int, cotangents: Tensor) -> None:
        return None

    def close_rows(self, slope_cotangents: Tensor) -> None:
        field = self._field
        rows = len(slope_cotangents) * field.rows
        self._grad2.addmm_(slope_cotangents.view(rows, field.dim).t(), field.outputs(self._kept))
        self._grad1.addmm_(self._inner.view(rows, field.hidden).t(), field.states(self._kept))
        self._slope2 += (self._seen_rows @ slope_cotangents).view(2, -1, field.dim).sum(1)
        self._slope1 += (self._seen_rows @ self._inner).view(2, -1, field.hidden).sum(1)

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        weight1 = torch.cat((self._grad1, self._slope1[1].unsqueeze(1)), 1)
        weight2 = torch.cat((self._grad2, self._slope2[1].unsqueeze(1)), 1)
        return inner_cotangent + state_cotangent, (
            weight1,
            self._slope1[0],
            weight2,
            self._slope2[0],
        )
