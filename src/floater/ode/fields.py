"""The right-hand side h(t, p) as the solver sees it: evaluate a stage, combine stages, go backwards.

A field integrates an *inner* state from which the state p itself follows. For any callable the two are the same.
For a perceptron h = W₂·act(W₁p + τ·v₁ + b₁) + τ·v₂ + b₂ the inner state is u = W₁p, because then
du/dt = (W₁W₂)·z + …, one matrix product a stage instead of two, and p is needed once a step and not once a stage.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ArgumentError, StaleTrajectoryError
from .activations import Activation

Dynamics = Callable[[float, Tensor], Tensor]


class Attempt(NamedTuple):
    """A step that may be accepted: states p before and after it, its error estimate, its length."""

    before: Tensor
    after: Tensor
    error: Tensor
    length: float


class Field(ABC):
    """What the stepper and the reverse sweep ask of a right-hand side.

    All states are handed over flat: [width] is an inner state, [size] a state p, [S, …] the stages of one step.

    Attributes:
        initial: p(start), flat and detached.
        inputs: the differentiable tensors θ that h depends on, in the order of the gradients of `Reverse.finish`.
        width: number of elements of the inner state.
    """

    initial: Tensor
    inputs: tuple[Tensor, ...]
    width: int
    kept_width: int
    """Number of elements that a stage keeps for the reverse sweep; its inner state comes first."""
    constants: Tensor
    """Rows [c, width] that enter the inner state of a stage with weights of their own: what the time and the biases add."""
    passing: int = 0
    """How many of these, the first ones, belong to a stage but not to the inner state itself."""
    spent: int = 0
    """Evaluations of h that it took to make the field."""

    @abstractmethod
    def enter(self) -> Tensor:
        """The inner state [width] at the start."""

    def constant_weights(self, times: Sequence[float], coupling: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights [S, c] of the constant rows in the stages at `times`, coupled by `coupling` [S, S] (with the step's length)."""
        return np.zeros((len(times), 0))

    @abstractmethod
    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        """Evaluate h at the stage whose inner state, constant rows included, stands in `kept`.

        Writes the inner slope, and into `kept` what the reverse sweep needs to know about this stage.
        """

    def stages(self, times: Sequence[float], terms: Tensor, heads: Sequence[Tensor], weights: Tensor, kept: Tensor) -> None:
        """Evaluate all stages of a step but the first, each from those before it.

        Args:
            times: of the stages [S].
            terms: constant rows, the inner state and the slopes [c + 1 + S, width]; the slopes are written.
            heads: what stage s depends on, `terms[: c + 1 + s].t()` for each s.
            weights: [S, c + 1 + S].
            kept: [S, width]; written as `stage` does.
        """
        count = len(terms) - len(kept)
        slopes, rows = terms[count:].unbind(), kept.unbind()
        for s in range(1, len(rows)):
            torch.mv(heads[s], weights[s, : count + s], out=rows[s])
            self.stage(times[s], slopes[s], rows[s])

    @abstractmethod
    def combine(self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor) -> Tensor:
        """Weighted sums [r, size] of the slopes of p, from weights [r, S] over the stages of a step."""

    @abstractmethod
    def reverse(self) -> Reverse:
        """An accumulator for one reverse sweep."""

    def strain(self, weights: Tensor, slopes: Tensor, kept: Tensor, length: float) -> float:
        """Error of what the gradient rests on, beyond the state itself; 0 where nothing is known of it."""
        return 0.0

    def measure(
        self, step: Attempt, weights: Tensor, slopes: Tensor, kept: Tensor, relative: float, absolute: float
    ) -> tuple[float, float, float]:
        """How large the error of a step is: relative to its scale (root mean square), the sum of the scales, and the strain.

        Args:
            step: the step.
            weights: of the stages in the error estimate, without the length [1, S].
            slopes: inner slopes of the stages.
            kept: what the stages kept.
            relative, absolute: tolerances, which make the scale of each element.
        """
        scale = torch.maximum(step.before.abs(), step.after.abs()).mul_(relative).add_(absolute)
        error = float(torch.linalg.vector_norm(step.error / scale)) / max(1, scale.numel()) ** 0.5
        return error, float(scale.sum()), self.strain(weights, slopes, kept, step.length)

    def check_unchanged(self) -> None:
        """Raise if the weights are no longer those the trajectory was solved with."""
        return None


class Reverse(ABC):
    """One sweep from the last step to the first; collects the gradients of θ and p(start)."""

    @abstractmethod
    def spread(self, moments: Tensor, weights: Tensor, times: Tensor, kept: Tensor) -> Tensor:
        """Cotangents [B, S, width] of the stages, from those of their combinations.

        Args:
            moments: cotangents [B, r, size] of the sums that `Field.combine` formed, for B steps.
            weights: the weights [B, r, S] of those sums.
            times: stage times [B, S], float64, on the CPU.
            kept: what the stages kept, [B, S, width].
        """

    @abstractmethod
    def open_rows(self, kept: Tensor, times: Tensor) -> None:
        """Announce the stages that come next: what they kept [R, width] and their times [R]."""

    @abstractmethod
    def stage(self, row: int, slope_cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        """Cotangent of a stage's inner state, from that of its inner slope and its share of `spread`."""

    def step(
        self, base: int, tail: Tensor, reach: Tensor, slopes: Tensor, following: Tensor, spread: Tensor, shared: Tensor
    ) -> None:
        """Go back through the stages of one step, the last one first.

        Args:
            base: announced row of the step's first stage.
            tail: cotangents of stages 2 … S, which are written, then of the inner state [S, width]: after the step when called,
                before it on return.
            reach: coupling of stages times the step's length [S + 1, S].
            slopes: cotangents of the slopes [S, width]; all but the first are written.
            following: of the slope that is shared with the step after [width]; on return, with the step before.
            spread: what outputs send to the stages [S, width]; may be changed.
            shared: what they send to the stage that is shared with the step after [width].
        """
        rows, shares = slopes.unbind(), spread.unbind()
        last = len(rows) - 1
        rows[last].copy_(following)
        self.stage(base + last, rows[last], shares[last].add_(shared), tail[last - 1])
        for s in reversed(range(1, last)):
            torch.mv(tail[s:].t(), reach[s + 1 :, s], out=rows[s])
            self.stage(base + s, rows[s], shares[s], tail[s - 1])
        torch.mv(tail.t(), reach[1:, 0], out=following)
        tail[last].copy_(tail.sum(0))

    @abstractmethod
    def gather(self, first: int, cotangents: Tensor) -> None:
        """Collect the cotangents [n, width] of the inner states of the announced rows `first`, `first` + 1, …."""

    @abstractmethod
    def close_rows(self, slope_cotangents: Tensor) -> None:
        """All stages of the announced rows are through; add up their weight gradients in one product each."""

    @abstractmethod
    def finish(self, inner_cotangent: Tensor, state_cotangent: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Gradients of p(start), flat, and of each of `Field.inputs`."""


class CallableField(Field):
    """Any h(t, p): a module, a function, a closure. Goes backwards by one vector-Jacobian product a stage."""

    def __init__(self, dynamics: Dynamics, initial: Tensor, start: float, inputs: tuple[Tensor, ...] | None = None) -> None:
        self._dynamics = dynamics
        self._shape = initial.shape
        self.initial = initial.detach().reshape(-1).clone()  # the first step may come after p(start) was changed
        self.width = self.kept_width = self.initial.numel()
        self.constants = self.initial.new_empty(0, self.width)
        self.inputs = self._find_inputs(initial, start) if inputs is None else inputs
        self._versions = tuple(tensor._version for tensor in self.inputs)

    def __call__(self, time: float, state: Tensor) -> Tensor:
        slope = self._dynamics(time, state.view(self._shape))
        if not isinstance(slope, Tensor) or slope.shape != self._shape or slope.dtype != state.dtype:
            found = f"{tuple(slope.shape)} of {slope.dtype}" if isinstance(slope, Tensor) else repr(slope)
            raise ArgumentError(
                f"`dynamics` must return a slope of the state's shape and type, {tuple(self._shape)} of {state.dtype}, "
                f"but returned {found}."
            )
        return slope.reshape(-1)

    def _find_inputs(self, initial: Tensor, start: float) -> tuple[Tensor, ...]:
        """The tensors that receive gradients: a module's parameters, or what a function holds and reaches."""
        owner = self._dynamics if isinstance(self._dynamics, nn.Module) else getattr(self._dynamics, "__self__", None)
        if isinstance(owner, nn.Module):
            return tuple(parameter for parameter in owner.parameters() if parameter.requires_grad)
        self.spent = 1
        with torch.enable_grad():
            slope = self(start, initial.detach().reshape(-1))
        return tuple({id(leaf): leaf for leaf in (*_held(self._dynamics), *_leaves(slope))}.values())

    def enter(self) -> Tensor:
        return self.initial.clone()

    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        slope.copy_(self(time, kept))

    def combine(self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor) -> Tensor:
        return weights @ slopes

    def reverse(self) -> Reverse:
        return _CallableReverse(self)

    def check_unchanged(self) -> None:
        if tuple(tensor._version for tensor in self.inputs) != self._versions:
            raise StaleTrajectoryError(
                "A parameter of the dynamics was changed in place after the trajectory was solved; solve again "
                "(or call backward before the optimiser's step)."
            )


class _CallableReverse(Reverse):
    def __init__(self, field: CallableField) -> None:
        field.check_unchanged()
        self._field = field
        self._gradients: list[Tensor | None] = [None] * len(field.inputs)
        self._kept = field.initial
        self._times: list[float] = []

    def spread(self, moments: Tensor, weights: Tensor, times: Tensor, kept: Tensor) -> Tensor:
        return weights.transpose(1, 2) @ moments

    def open_rows(self, kept: Tensor, times: Tensor) -> None:
        self._kept, self._times = kept, times.tolist()

    def stage(self, row: int, slope_cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        with torch.enable_grad():
            state = self._kept[row].detach().requires_grad_()
            slope = self._field(self._times[row], state)
        if not slope.requires_grad:
            out.zero_()
            return
        wanted = (state, *self._field.inputs)
        pulled: tuple[Tensor | None, ...] = torch.autograd.grad(
            slope, wanted, slope_cotangent + spread, retain_graph=True, allow_unused=True
        )
        if pulled[0] is None:
            out.zero_()
        else:
            out.copy_(pulled[0])
        for i, gradient in enumerate(pulled[1:]):
            held = self._gradients[i]
            if gradient is not None:
                self._gradients[i] = gradient if held is None else held + gradient

    def gather(self, first: int, cotangents: Tensor) -> None:
        return None

    def close_rows(self, slope_cotangents: Tensor) -> None:
        return None

    def finish(self, inner_cotangent: Tensor, state_cotangent: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        return inner_cotangent + state_cotangent, tuple(self._gradients)


class Perceptron(Field):
    """What all ways to step h = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂ share; v: a weight's last column.

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
                f"`initial` must have the dynamics' size {self.dim} as its last dimension, but has shape {tuple(initial.shape)}."
            )
        for tensor in self.inputs:
            if tensor.dtype != initial.dtype or tensor.device != initial.device:
                raise ArgumentError(
                    f"`initial` must have the dynamics' type and device ({tensor.dtype} on {tensor.device}), "
                    f"but is {initial.dtype} on {initial.device}; convert one of them with .to()."
                )
        self.activation = activation
        self.view = view
        with torch.no_grad():
            self.initial = initial.detach().reshape(-1).clone()  # the first step may come after p(start) was changed
            self.rows = self.initial.numel() // self.dim
            (weight1, bias1), (weight2, bias2) = first, second
            self.w1, self.v1, self.b1 = weight1[:, :-1].contiguous(), weight1[:, -1].contiguous(), bias1.clone()
            self.w2, self.v2, self.b2 = weight2[:, :-1].contiguous(), weight2[:, -1].contiguous(), bias2.clone()

    def outputs(self, kept: Tensor) -> Tensor:
        """act(·) of stages, from what they kept."""
        return kept if self.activation.from_output else self.activation.forward(kept)

    def strained(self, weights: Tensor, z: Tensor, missed: Tensor, kept: Tensor) -> float:
        """Two errors of the hidden layer: of its integral over the step, relative to its size (dL/dW₂ is made of
        such integrals), and of its values at the end of the step. Where the state is large, its relative tolerance lets
        pre-activations err by more than a nonlinearity forgives, and the reverse sweep would be unstable.

        Args:
            weights: of the error estimate [1, S].
            z: act(·) of the stages [S, …].
            missed: error of the pre-activation at the end.
            kept: what the last stage kept.
        """
        size, integral = float(torch.linalg.vector_norm(z)), float(torch.linalg.vector_norm(weights @ z))
        value = float(torch.linalg.vector_norm(missed.mul_(self.activation.derivative(kept))))
        return weigh_strain(size, integral, value, missed.numel(), len(z))


def weigh_strain(z: float, integral: float, value: float, width: int, stages: int) -> float:
    """See `Perceptron.strained`, from the norms of act(·) at all stages, of the error of its integral and of its last value."""
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
            # v₁ and b₁ shift the pre-activation; W₁b₂ and W₁v₂ are parts of the inner slope that need no product.
            shifts = torch.stack((self.v1, self.b1, self.w1 @ self.b2, self.w1 @ self.v2))
            self.constants = shifts.repeat(1, self.rows)
            self.passing = 2
            self._level = torch.stack((self.b2, self.v2))
            self._shape = (self.rows, self.hidden)

    def enter(self) -> Tensor:
        return (self.initial.view(self.rows, self.dim) @ self.w1.t()).view(-1)

    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        z = self.activation.apply_(kept) if self.activation.from_output else self.activation.forward(kept)
        torch.mm(z.view(self._shape), self.w21, out=slope.view(self._shape))

    def constant_weights(self, times: Sequence[float], coupling: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = np.array([self.view(time) for time in times])
        return np.stack((seen, np.ones_like(seen), coupling.sum(1), coupling @ seen), 1)

    def combine(self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor) -> Tensor:
        sums = (weights @ self.outputs(kept)).view(-1, self.hidden)
        seen = weights.new_tensor([[1.0, self.view(time)] for time in times])
        shift = (weights @ seen) @ self._level
        lifted = (sums @ self.w2.t()).view(len(weights), self.rows, self.dim)
        return lifted.add_(shift.unsqueeze(1)).view(len(weights), -1)

    def strain(self, weights: Tensor, slopes: Tensor, kept: Tensor, length: float) -> float:
        return self.strained(weights, self.outputs(kept), ((length * weights) @ slopes).view(-1), kept[-1])

    def reverse(self) -> Reverse:
        return _PerceptronReverse(self)


class PerceptronReverse(Reverse):
    """What the reverse sweeps of perceptrons share."""

    def __init__(self, field: Perceptron) -> None:
        self._like, self._view = field.initial, field.view

    def seen(self, times: Tensor) -> Tensor:
        """[2, …]: ones and τ(t)."""
        seen = torch.tensor([self._view(time) for time in times.reshape(-1).tolist()], dtype=torch.float64)
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
        torch.addmm(spread.view(shape), slope_cotangent.view(shape), self._back, out=out.view(shape))
        out.mul_(self._derivative[row])

    def gather(self, first: int, cotangents: Tensor) -> None:
        self._slope1.addmm_(self._seen_rows[:, first : first + len(cotangents)], cotangents)

    def close_rows(self, slope_cotangents: Tensor) -> None:
        hidden = self._field.hidden
        self._grad21.addmm_(slope_cotangents.view(-1, hidden).t(), self._z.reshape(-1, hidden))
        self._slope21 += (self._seen_rows @ slope_cotangents).view(2, -1, hidden).sum(1)

    def finish(self, inner_cotangent: Tensor, state_cotangent: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        field = self._field
        inner = inner_cotangent.view(field.rows, field.hidden)
        grad_initial = torch.addmm(state_cotangent.view(field.rows, field.dim), inner, field.w1)
        slope1 = self._slope1.view(2, field.rows, field.hidden).sum(1)
        weight1 = torch.empty_like(field.inputs[0])
        weight1[:, -1] = slope1[1]
        through = torch.addmm(inner.t() @ field.initial.view(field.rows, field.dim), self._slope21.t(), field._level)
        weight1[:, :-1] = through.addmm_(self._grad21, field.w2.t())
        weight2 = torch.empty_like(field.inputs[2])
        weight2[:, :-1] = self._grad2.addmm_(field.w1.t(), self._grad21)
        slope2 = self._slope2 + self._slope21 @ field.w1
        weight2[:, -1] = slope2[1]
        return grad_initial.view(-1), (weight1, slope1[0], weight2, slope2[0])


def _held(function: object) -> Iterator[Tensor]:
    """Leaf tensors that a function keeps in its closure, its bound arguments or the globals it names."""
    if isinstance(function, functools.partial):
        yield from _held(function.func)
        holders: list[object] = [*function.args, *function.keywords.values()]
    else:
        holders = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        code, spaces = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        holders += [spaces[name] for name in getattr(code, "co_names", ()) if name in spaces]
    for held in holders:
        if isinstance(held, Tensor) and held.is_leaf and held.requires_grad:
            yield held
        elif isinstance(held, nn.Module):
            yield from (parameter for parameter in held.parameters() if parameter.requires_grad)


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """Leaf tensors that a result was computed from."""
    if result.is_leaf and result.requires_grad:
        yield result
    seen: set[object] = set()
    todo = [result.grad_fn] if result.grad_fn is not None else []
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        todo.extend(parent for parent, _ in node.next_functions if parent is not None)
