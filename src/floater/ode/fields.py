"""The right-hand side h(t, p) as the solver sees it: evaluate a stage, combine stages, go
backwards.

A field integrates an *inner* state from which the state p itself follows. For any callable the two
are the same. For a perceptron h = W₂·act(W₁p + τ·v₁ + b₁) + τ·v₂ + b₂ the inner state is u = W₁p,
because then du/dt = (W₁W₂)·z + …, one matrix product a stage instead of two, and p is needed once a
step and not once a stage.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ArgumentError, StaleTrajectoryError

Dynamics = Callable[[float, Tensor], Tensor]


class Attempt(NamedTuple):
    """A step that may be accepted: states p before and after it, its error estimate, its length."""

    before: Tensor
    after: Tensor
    error: Tensor
    length: float


class Field(ABC):
    """What the stepper and the reverse sweep ask of a right-hand side.

    All states are handed over flat: [width] is an inner state, [size] a state p, [S, …] the stages
    of one step.

    Attributes:
        initial: p(start), flat and detached.
        inputs: the differentiable tensors θ that h depends on, in the order of the gradients of
            `Reverse.finish`.
        width: number of elements of the inner state.
    """

    initial: Tensor
    inputs: tuple[Tensor, ...]
    width: int
    kept_width: int
    """Number of elements that a stage keeps for the reverse sweep; its inner state comes first."""
    constants: Tensor
    """Rows [c, width] that enter the inner state of a stage with weights of their own: what the
    time and the biases add.
    """
    passing: int = 0
    """How many of these, the first ones, belong to a stage but not to the inner state itself."""
    spent: int = 0
    """Evaluations of h that it took to make the field."""

    @abstractmethod
    def enter(self) -> Tensor:
        """The inner state [width] at the start."""

    def constant_weights(
        self, times: Sequence[float], coupling: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Weights [S, c] of the constant rows in the stages at `times`, coupled by `coupling` [S,
        S] (with the step's length).
        """
        return np.zeros((len(times), 0))

    @abstractmethod
    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        """Evaluate h at the stage whose inner state, constant rows included, stands in `kept`.

        Writes the inner slope, and into `kept` what the reverse sweep needs to know about this
        stage.
        """

    def stages(
        self,
        times: Sequence[float],
        terms: Tensor,
        heads: Sequence[Tensor],
        weights: Tensor,
        kept: Tensor,
    ) -> None:
        """Evaluate all stages of a step but the first, each from those before it.

        Args:
            times: of the stages [S].
            terms: constant rows, the inner state and the slopes [c + 1 + S, width]; the slopes are
                written.
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
    def combine(
        self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor
    ) -> Tensor:
        """Weighted sums [r, size] of the slopes of p, from weights [r, S] over the stages of a
        step.
        """

    @abstractmethod
    def reverse(self) -> Reverse:
        """An accumulator for one reverse sweep."""

    def strain(self, weights: Tensor, slopes: Tensor, kept: Tensor, length: float) -> float:
        """Error of what the gradient rests on, beyond the state itself; 0 where nothing is known of
        it.
        """
        return 0.0

    def measure(
        self,
        step: Attempt,
        weights: Tensor,
        slopes: Tensor,
        kept: Tensor,
        relative: float,
        absolute: float,
    ) -> tuple[float, float, float]:
        """How large the error of a step is: relative to its scale (root mean square), the sum of
        the scales, and the strain.

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

    own_weights: bool = True
    """Whether the field keeps copies of its weights, so that it stays what it was whatever becomes
    of them.
    """

    def unchanged(self) -> bool:
        """Whether the weights, as far as the field can tell, are those the trajectory was solved
        with.
        """
        return True

    def check_unchanged(self) -> None:
        """Raise if the weights are no longer those the trajectory was solved with."""
        if not self.unchanged():
            raise StaleTrajectoryError(
                "A parameter of the dynamics was changed in place after the trajectory was solved; "
                "solve again (or call backward before the optimiser's step)."
            )


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
        """Cotangent of a stage's inner state, from that of its inner slope and its share of
        `spread`.
        """

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
        """Go back through the stages of one step, the last one first.

        Args:
            base: announced row of the step's first stage.
            tail: cotangents of stages 2 … S, which are written, then of the inner state [S, width]:
                after the step when called, before it on return.
            reach: coupling of stages times the step's length [S + 1, S].
            slopes: cotangents of the slopes [S, width]; all but the first are written.
            following: of the slope that is shared with the step after [width]; on return, with the
                step before.
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
        """Collect the cotangents [n, width] of the inner states of the announced rows `first`,
        `first` + 1, ….
        """

    @abstractmethod
    def close_rows(self, slope_cotangents: Tensor) -> None:
        """All stages of the announced rows are through; add up their weight gradients in one
        product each.
        """

    @abstractmethod
    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Gradients of p(start), flat, and of each of `Field.inputs`."""


class CallableField(Field):
    """Any h(t, p): a module, a function, a closure.

    Goes backwards by one vector-Jacobian product a stage.
    """

    own_weights = False

    def __init__(
        self,
        dynamics: Dynamics,
        initial: Tensor,
        start: float,
        inputs: tuple[Tensor, ...] | None = None,
    ) -> None:
        self._dynamics = dynamics
        self._shape = initial.shape
        self.initial = (
            initial.detach().reshape(-1).clone()
        )  # the first step may come after p(start) was changed
        self.width = self.kept_width = self.initial.numel()
        self.constants = self.initial.new_empty(0, self.width)
        self.inputs = self._find_inputs(initial, start) if inputs is None else inputs
        self._versions = tuple(tensor._version for tensor in self.inputs)

    def __call__(self, time: float, state: Tensor) -> Tensor:
        slope = self._dynamics(time, state.view(self._shape))
        if (
            not isinstance(slope, Tensor)
            or slope.shape != self._shape
            or slope.dtype != state.dtype
        ):
            found = (
                f"{tuple(slope.shape)} of {slope.dtype}"
                if isinstance(slope, Tensor)
                else repr(slope)
            )
            raise ArgumentError(
                "`dynamics` must return a slope of the state's shape and type, "
                f"{tuple(self._shape)} of {state.dtype}, but returned {found}."
            )
        return slope.reshape(-1)

    def _find_inputs(self, initial: Tensor, start: float) -> tuple[Tensor, ...]:
        """The tensors that receive gradients: a module's parameters, or what a function holds and
        reaches.
        """
        owner = (
            self._dynamics
            if isinstance(self._dynamics, nn.Module)
            else getattr(self._dynamics, "__self__", None)
        )
        if isinstance(owner, nn.Module):
            return tuple(parameter for parameter in owner.parameters() if parameter.requires_grad)
        self.spent = 1
        with torch.enable_grad():
            slope = self(start, initial.detach().reshape(-1))
        return tuple(
            {id(leaf): leaf for leaf in (*_held(self._dynamics), *_leaves(slope))}.values()
        )

    def enter(self) -> Tensor:
        return self.initial.clone()

    def stage(self, time: float, slope: Tensor, kept: Tensor) -> None:
        slope.copy_(self(time, kept))

    def combine(
        self, weights: Tensor, times: Sequence[float], slopes: Tensor, kept: Tensor
    ) -> Tensor:
        return weights @ slopes

    def reverse(self) -> Reverse:
        return _CallableReverse(self)

    def unchanged(self) -> bool:
        return tuple(tensor._version for tensor in self.inputs) == self._versions


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

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        return inner_cotangent + state_cotangent, tuple(self._gradients)


def _held(function: object) -> Iterator[Tensor]:
    """Leaf tensors that a function keeps in its closure, its bound arguments or the globals it
    names.
    """
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
