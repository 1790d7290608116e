"""The MLP of the paper as a field, with a reverse sweep written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ArgumentError
from .activations import Activation
from .device import to_device
from .fields import Attempt, Field, Reverse, StageBlock, Stages


class MLP(NamedTuple):
    """h(t, p) = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂, where v is the last column of a weight.

    Attributes:
        weight1: [hidden, dim + 1].
        bias1: [hidden].
        weight2: [dim, hidden + 1].
        bias2: [dim].
        activation: the nonlinearity.
        view: τ, what h sees of the time.
    """

    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    activation: Activation
    view: Callable[[float], float]


class MLPField(Field):
    """What all implementations of an MLP's steps share.

    Copies the weights, so that a trajectory stays true to the weights it was solved with.

    Args:
        initial: p(start) [..., dim].
        mlp: the network h.
    """

    def __init__(self, initial: Tensor, mlp: MLP) -> None:
        self.inputs = mlp[:4]
        self.dim, self.hidden = mlp.weight2.shape[0], mlp.weight1.shape[0]
        self._check(initial)
        self.activation, self.view = mlp.activation, mlp.view
        with torch.no_grad():
            # A copy, because `initial` may change before the first step is taken.
            self.initial = initial.detach().reshape(-1).clone()
            self.rows = self.initial.numel() // self.dim
            self.w1, self.v1 = _split(mlp.weight1)
            self.w2, self.v2 = _split(mlp.weight2)
            self.b1, self.b2 = mlp.bias1.clone(), mlp.bias2.clone()

    def _check(self, initial: Tensor) -> None:
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


def _split(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Copy a weight's columns for p, and its last column, which multiplies the time."""
    return weight[:, :-1].contiguous(), weight[:, -1].contiguous()


class HiddenNorms(NamedTuple):
    """Norms from which the error of the hidden layer follows.

    Attributes:
        activations: of act(·), root mean square over the stages.
        integral_error: of the error of its integral over the step.
        end_error: of the error of its values at the end of the step.
    """

    activations: float
    integral_error: float
    end_error: float


def hidden_layer_error(norms: HiddenNorms, width: int) -> float:
    """Return the sum of two errors of the hidden layer, relative to its size.

    These are the error of its integral over the step (dL/dW₂ is made of such integrals) and the
    error of its values at the end of the step. Where the state is large, its relative tolerance
    allows errors in the pre-activations that are too large for the nonlinearity, and the reverse
    sweep would be unstable.

    Args:
        norms: of the hidden layer.
        width: number of elements of the hidden layer, of all trajectories together.
    """
    count = math.sqrt(width)
    scale = norms.activations / count
    relative = norms.integral_error / (scale * count) if scale > 0 else 0.0
    return relative + norms.end_error / count / max(1.0, scale)


class TensorMLPField(MLPField):
    """An MLP's steps by tensor operations: integrates u = W₁p, with one product per stage."""

    adds_constants = True

    def __init__(self, initial: Tensor, mlp: MLP) -> None:
        super().__init__(initial, mlp)
        with torch.no_grad():
            self.width = self.tape_width = self.rows * self.hidden
            # One column-major copy of W₁W₂ serves both directions.
            self.w21 = self.w2.t() @ self.w1.t()
            # v₁ and b₁ shift the pre-activation; W₁b₂ and W₁v₂ are terms of the inner slope that
            # need no product per stage.
            shifts = torch.stack((self.v1, self.b1, self.w1 @ self.b2, self.w1 @ self.v2))
            self.constants = shifts.repeat(1, self.rows)
            self.stage_only = 2
            self.output_shifts = torch.stack((self.b2, self.v2))
            self._shape = (self.rows, self.hidden)

    def activations(self, tape: Tensor) -> Tensor:
        """Return act(·) of stages, from their tape."""
        return tape if self.activation.from_output else self.activation.forward(tape)

    def enter(self) -> Tensor:
        return (self.initial.view(self.rows, self.dim) @ self.w1.t()).view(-1)

    def stage(self, time: float, slope: Tensor, tape: Tensor) -> None:
        apply = self.activation.apply_ if self.activation.from_output else self.activation.forward
        torch.mm(apply(tape).view(self._shape), self.w21, out=slope.view(self._shape))

    def constant_weights(
        self, times: Sequence[float], coupling: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        seen = np.array([self.view(time) for time in times])
        return np.stack((seen, np.ones_like(seen), coupling.sum(1), coupling @ seen), 1)

    def combined_constants(
        self, times: Sequence[float], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        seen = np.array([[1.0, self.view(time)] for time in times])
        combined: NDArray[np.float64] = weights @ seen
        return combined

    def combine(self, weights: Tensor, constants: Tensor, stages: Stages) -> Tensor:
        hidden_sums = (weights @ self.activations(stages.tape)).view(-1, self.hidden)
        shift = constants @ self.output_shifts
        sums = (hidden_sums @ self.w2.t()).view(len(weights), self.rows, self.dim)
        return sums.add_(shift.unsqueeze(1)).view(len(weights), -1)

    def gradient_norms(self, attempt: Attempt) -> tuple[Tensor, ...]:
        weights, tape = attempt.error_weights, attempt.stages.tape
        z = self.activations(tape)
        inner_error = ((attempt.length * weights) @ attempt.stages.slopes).view(-1)
        return (
            torch.linalg.vector_norm(z) / math.sqrt(len(z)),
            torch.linalg.vector_norm(weights @ z),
            torch.linalg.vector_norm(inner_error.mul_(self.activation.derivative(tape[-1]))),
        )

    def gradient_error(self, norms: Sequence[float]) -> float:
        return hidden_layer_error(HiddenNorms(*norms), self.width)

    def reverse(self) -> Reverse:
        return _TensorMLPReverse(self)


class MLPReverse(Reverse):
    """What the reverse sweeps of MLPs share."""

    def __init__(self, field: MLPField) -> None:
        self._like, self._view = field.initial, field.view

    def seen(self, times: Tensor) -> Tensor:
        """Return ones and τ(t), [2, *times.shape]."""
        seen = torch.tensor(
            [self._view(time) for time in times.reshape(-1).tolist()], dtype=torch.float64
        )
        pair = torch.stack((torch.ones_like(seen), seen)).view(2, *times.shape)
        return to_device(pair, self._like)


class _TensorMLPReverse(MLPReverse):
    """Gradients of biases and of v are rows of one tensor: first b, then v."""

    def __init__(self, field: TensorMLPField) -> None:
        super().__init__(field)
        self._field = field
        zeros = field.initial.new_zeros
        hidden, dim = field.hidden, field.dim
        self._grad_w2 = zeros(dim, hidden)  # through the combinations of slopes
        self._grad_shift2 = zeros(2, dim)
        self._grad_w21 = zeros(hidden, hidden)  # through W₁W₂
        self._grad_shift21 = zeros(2, hidden)
        self._grad_shift1 = zeros(2, field.width)  # still one row per trajectory
        self._z = self._derivative = self._seen_rows = field.initial  # until a block is opened
        self._shape, self._back = (field.rows, hidden), field.w21.t()

    def output_cotangents(self, moments: Tensor, weights: Tensor, block: StageBlock) -> Tensor:
        field = self._field
        batch, sums, _ = weights.shape
        flat = moments.reshape(-1, field.dim)
        combined = (weights @ field.activations(block.by_step())).view(-1, field.hidden)
        self._grad_w2.addmm_(flat.t(), combined)
        seen = self.seen(block.times)  # [2, B, S]
        shares = torch.einsum("brs,cbs->cbr", weights, seen).reshape(2, batch * sums)
        self._grad_shift2 += shares @ moments.view(batch * sums, field.rows, field.dim).sum(1)
        pulled = (flat @ field.w2).view(batch, sums, field.width)
        return weights.transpose(1, 2) @ pulled

    def open_block(self, block: StageBlock) -> None:
        self._z = self._field.activations(block.tape)
        self._derivative = self._field.activation.derivative(block.tape)
        self._seen_rows = self.seen(block.row_times())

    def stage(self, row: int, slope_cotangent: Tensor, outputs: Tensor, out: Tensor) -> None:
        shape = self._shape
        torch.addmm(
            outputs.view(shape), slope_cotangent.view(shape), self._back, out=out.view(shape)
        )
        out.mul_(self._derivative[row])

    def gather(self, first_row: int, cotangents: Tensor) -> None:
        seen = self._seen_rows[:, first_row : first_row + len(cotangents)]
        self._grad_shift1.addmm_(seen, cotangents)

    def close_block(self, slope_cotangents: Tensor) -> None:
        hidden = self._field.hidden
        self._grad_w21.addmm_(slope_cotangents.view(-1, hidden).t(), self._z.reshape(-1, hidden))
        self._grad_shift21 += (self._seen_rows @ slope_cotangents).view(2, -1, hidden).sum(1)

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        field = self._field
        inner = inner_cotangent.view(field.rows, field.hidden)
        grad_initial = torch.addmm(state_cotangent.view(field.rows, field.dim), inner, field.w1)
        shift1 = self._grad_shift1.view(2, field.rows, field.hidden).sum(1)
        weight1 = torch.empty_like(field.inputs[0])
        weight1[:, -1] = shift1[1]
        through_start = inner.t() @ field.initial.view(field.rows, field.dim)
        grad_w1 = torch.addmm(through_start, self._grad_shift21.t(), field.output_shifts)
        weight1[:, :-1] = grad_w1.addmm_(self._grad_w21, field.w2.t())
        weight2 = torch.empty_like(field.inputs[2])
        weight2[:, :-1] = self._grad_w2.addmm_(field.w1.t(), self._grad_w21)
        shift2 = self._grad_shift2 + self._grad_shift21 @ field.w1
        weight2[:, -1] = shift2[1]
        return grad_initial.view(-1), (weight1, shift1[0], weight2, shift2[0])
