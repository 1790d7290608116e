"""The perceptron of the paper, h = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂, with a reverse sweep
written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ArgumentError
from .activations import Activation
from .fields import Field, Reverse


class Perceptron(Field):
    """What all ways to step h = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂ share; v: a weight's last
    column.

    Keeps copies of the weights, so that a trajectory stays true to the weights it was solved with.

    Args:
        initial: p(start) [..., dim].
        first: weight [hidden, dim + 1] and bias [hidden].
        second: weight [dim, hidden + 1] and bias [dim].
        activation: the nonlinearity.
        view: τ, what h sees of the time.
    """

    def __init__(
        self,
        initial: Tensor,
        first: tuple[Tensor, Tensor],
        second: tuple[Tensor, Tensor],
        activation: Activation,
        view: Callable[[float], float],
    ) -> None:
        self.inputs = (*first, *second)
        self.dim, self.hidden = second[0].shape[0], first[0].shape[0]
        if initial.shape[-1:] != (self.dim,):
            raise ArgumentError(
                f"`initial` must have the dynamics' size {self.dim} as its last dimension, but has "
                f"shape {tuple(initial.shape)}."
            )
        for tensor in self.inputs:
            if tensor.dtype != initial.dtype or tensor.device != initial.device:
                raise ArgumentError(
                    f"`initial` must have the dynamics' type and device ({tensor.dtype} on "
                    f"{tensor.device}), but is {initial.dtype} on {initial.device}; convert one of "
                    "them with .to()."
                )
        self.activation = activation
        self.view = view
        with torch.no_grad():
            self.initial = (
                initial.detach().reshape(-1).clone()
            )  # the first step may come after p(start) was changed
            self.rows = self.initial.numel() // self.dim
            (weight1, bias1), (weight2, bias2) = first, second
            self.w1, self.v1, self.b1 = (
                weight1[:, :-1].contiguous(),
                weight1[:, -1].contiguous(),
                bias1.clone(),
            )
            self.w2, self.v2, self.b2 = (
                weight2[:, :-1].contiguous(),
                weight2[:, -1].contiguous(),
                bias2.clone(),
            )

    def outputs(self, kept: Tensor) -> Tensor:
        """act(·) of stages, from what they kept."""
        return kept if self.activation.from_output else self.activation.forward(kept)

    def strained(self, weights: Tensor, z: Tensor, missed: Tensor, kept: Tensor) -> float:
        """Two errors of the hidden layer: of its integral over the step, relative to its size
        (dL/dW₂ is made of such integrals), and of its values at the end of the step. Where the
        state is large, its relative tolerance lets pre-activations err by more than a nonlinearity
        forgives, and the reverse sweep would be unstable.

        Args:
            weights: of the error estimate [1, S].
            z: act(·) of the stages [S, …].
            missed: error of the pre-activation at the end.
            kept: what the last stage kept.
        """
        size, integral = (
            float(torch.linalg.vector_norm(z)),
            float(torch.linalg.vector_norm(weights @ z)),
        )
        value = float(torch.linalg.vector_norm(missed.mul_(self.activation.derivative(kept))))
        return weigh_strain(size, integral, value, missed.numel(), len(z))


def weigh_strain(z: float, integral: float, value: float, width: int, stages: int) -> float:
    """See `Perceptron.strained`, from the norms of act(·) at all stages, of the error of its
    integral and of its last value.
    """
    count = math.sqrt(width)
    scale = z / (math.sqrt(stages) * count)
    relative = integral / (scale * count) if scale > 0 else 0.0
    return relative + value / count / max(1.0, scale)


class PerceptronField(Perceptron):
    """The perceptron by tensor operations: integrates u = W₁p, one product a stage."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with torch.no_grad():
            self.width = self.kept_width = self.rows * self.hidden
            # One column-major copy of W₁W₂ serves both directions.
            self.w21 = self.w2.t() @ self.w1.t()
            # v₁ and b₁ shift the pre-activation; W₁b₂ and W₁v₂ are parts of the inner slope that
            # need no product.
            shifts = torch.stack((self.v1, self.b1, self.w1 @ self.b2, self.w1 @ self.v2))
            self.constants = shifts.repeat(1, self.rows)
            self.passing = 2
            self._level = torch.stack((self.b2, self.v2))
            self._shape = (self.rows, self.hidden)

    def enter(self) -> Tensor:
        return (self.initial.view(self.rows, self.dim) @ self.w1.t()).view(-1)

    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        z = (
            self.activation.apply_(kept)
            if self.activation.from_output
            else self.activation.forward(kept)
        )
        torch.mm(z.view(self._shape), self.w21, out=slope.view(self._shape))

    def constant_weights(
        self, times: Sequence[float], coupling: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        seen = np.array([self.view(time) for time in times])
        return np.stack((seen, np.ones_like(seen), coupling.sum(1), coupling @ seen), 1)

    def combine(
        self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor
    ) -> Tensor:
        sums = (weights @ self.outputs(kept)).view(-1, self.hidden)
        seen = weights.new_tensor([[1.0, self.view(time)] for time in times])
        shift = (weights @ seen) @ self._level
        lifted = (sums @ self.w2.t()).view(len(weights), self.rows, self.dim)
        return lifted.add_(shift.unsqueeze(1)).view(len(weights), -1)

    def strain(self, weights: Tensor, slopes: Tensor, kept: Tensor, length: float) -> float:
        return self.strained(
            weights, self.outputs(kept), ((length * weights) @ slopes).view(-1), kept[-1]
        )

    def reverse(self) -> Reverse:
        return _PerceptronReverse(self)


class PerceptronReverse(Reverse):
    """What the reverse sweeps of perceptrons share."""

    def __init__(self, field: Perceptron) -> None:
        self._like, self._view = field.initial, field.view

    def seen(self, times: Tensor) -> Tensor:
        """[2, …]: ones and τ(t)."""
        seen = torch.tensor(
            [self._view(time) for time in times.reshape(-1).tolist()], dtype=torch.float64
        )
        pair = torch.stack((torch.ones_like(seen), seen)).view(2, *times.shape)
        return pair.to(self._like.device, self._like.dtype)


class _PerceptronReverse(PerceptronReverse):
    def __init__(self, field: PerceptronField) -> None:
        super().__init__(field)
        self._field = field
        new = field.initial.new_zeros
        hidden, dim = field.hidden, field.dim
        self._grad2 = new(dim, hidden)  # through the combinations of slopes
        self._slope2 = new(2, dim)  # the same for b₂ and v₂
        self._grad21 = new(hidden, hidden)  # through W₁W₂
        self._slope21 = new(2, hidden)
        self._slope1 = new(2, field.width)  # b₁ and v₁, still a row a trajectory
        self._z = self._seen_rows = field.initial
        self._derivative = field.initial
        self._shape, self._back = (field.rows, hidden), field.w21.t()

    def spread(self, moments: Tensor, weights: Tensor, times: Tensor, kept: Tensor) -> Tensor:
        field = self._field
        batch, sums, _ = weights.shape
        flat = moments.reshape(-1, field.dim)
        combined = (weights @ field.outputs(kept)).view(-1, field.hidden)
        self._grad2.addmm_(flat.t(), combined)
        seen = self.seen(times)  # [2, B, S]
        shares = torch.einsum("brs,cbs->cbr", weights, seen).reshape(2, batch * sums)
        self._slope2 += shares @ moments.view(batch * sums, field.rows, field.dim).sum(1)
        pulled = (flat @ field.w2).view(batch, sums, field.width)
        return weights.transpose(1, 2) @ pulled

    def open_rows(self, kept: Tensor, times: Tensor) -> None:
        self._z = self._field.outputs(kept)
        self._derivative = self._field.activation.derivative(kept)
        self._seen_rows = self.seen(times)

    def stage(self, row: int, slope_cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        shape = self._shape
        torch.addmm(
            spread.view(shape), slope_cotangent.view(shape), self._back, out=out.view(shape)
        )
        out.mul_(self._derivative[row])

    def gather(self, first: int, cotangents: Tensor) -> None:
        self._slope1.addmm_(self._seen_rows[:, first : first + len(cotangents)], cotangents)

    def close_rows(self, slope_cotangents: Tensor) -> None:
        hidden = self._field.hidden
        self._grad21.addmm_(slope_cotangents.view(-1, hidden).t(), self._z.reshape(-1, hidden))
        self._slope21 += (self._seen_rows @ slope_cotangents).view(2, -1, hidden).sum(1)

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        field = self._field
        inner = inner_cotangent.view(field.rows, field.hidden)
        grad_initial = torch.addmm(state_cotangent.view(field.rows, field.dim), inner, field.w1)
        slope1 = self._slope1.view(2, field.rows, field.hidden).sum(1)
        weight1 = torch.empty_like(field.inputs[0])
        weight1[:, -1] = slope1[1]
        through = torch.addmm(
            inner.t() @ field.initial.view(field.rows, field.dim), self._slope21.t(), field._level
        )
        weight1[:, :-1] = through.addmm_(self._grad21, field.w2.t())
        weight2 = torch.empty_like(field.inputs[2])
        weight2[:, :-1] = self._grad2.addmm_(field.w1.t(), self._grad21)
        slope2 = self._slope2 + self._slope21 @ field.w1
        weight2[:, -1] = slope2[1]
        return grad_initial.view(-1), (weight1, slope1[0], weight2, slope2[0])
