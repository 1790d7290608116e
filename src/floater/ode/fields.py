"""The right-hand side h(t, p) as the solver sees it: evaluate stages, combine them, go backwards.

A field integrates an *inner* state from which the state p follows. For a plain callable the two are
the same. For an MLP h = W₂·act(W₁p + τ·v₁ + b₁) + τ·v₂ + b₂ the inner state is u = W₁p, because
then du/dt = (W₁W₂)·z + …: one matrix product per stage instead of two, and p is needed once per
step instead of once per stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import StaleTrajectoryError
from .tableaus import Tableau

Dynamics = Callable[[float, Tensor], Tensor]


class StageTerms:
    """The rows that stages are weighted sums of: constants, the inner state and the inner slopes.

    Attributes:
        rows: all of them [c + 1 + S, width].
        inner: the inner state at the start of the step [width].
        slopes: inner slopes of the stages [S, width].
        each_slope: the same, one tensor per stage.
        prefixes: what stage s depends on, `rows[: c + 1 + s].t()` for each s.
    """

    def __init__(self, constants: Tensor, stages: int) -> None:
        count, width = constants.shape
        self.rows = constants.new_empty(count + 1 + stages, width)
        self.rows[:count] = constants
        self.inner, self.slopes = self.rows[count], self.rows[count + 1 :]
        self.each_slope = self.slopes.unbind()
        self.prefixes = [self.rows[: count + 1 + s].t() for s in range(stages)]


class Stages(NamedTuple):
    """Stages of one step: their times [S], inner slopes [S, width] and tape [S, tape_width]."""

    times: Sequence[float]
    slopes: Tensor
    tape: Tensor


class Attempt(NamedTuple):
    """A step that has been computed but not yet accepted.

    Attributes:
        length: length of the step.
        before: p at its start.
        after: p at its end.
        error: estimate of its error; the change of p for methods that estimate none.
        error_weights: weights of the stages in `error`, without the length [1, S].
        stages: its stages.
        measured: how large the error is, if that is known already.
    """

    length: float
    before: Tensor
    after: Tensor
    error: Tensor
    error_weights: Tensor
    stages: Stages
    measured: StepError | None = None


class StepError(NamedTuple):
    """How large the error of a step is.

    Attributes:
        relative: error of p over its scale, root mean square.
        scale_sum: sum of the scales of all elements; not finite if p is not.
        gradient: error of the quantities that the gradient is computed from.
    """

    relative: float
    scale_sum: float
    gradient: float


class WholeSteps(ABC):
    """Computes whole steps, where that is faster than their parts one by one."""

    @abstractmethod
    def attempt(
        self,
        length: float,
        times: Sequence[float],
        before: Tensor,
        polynomial: Tensor,
        tape: Tensor,
    ) -> Attempt:
        """Compute a step.

        Args:
            length: of the step.
            times: of its stages [S].
            before: p at its start.
            polynomial: p inside it [degree + 1, size]; written.
            tape: what the stages record [S, tape_width]; the first stage is there already.
        """

    @abstractmethod
    def accept(self, tape: Tensor) -> None:
        """Make the last stage of the step with this tape the first of the next."""


class Field(ABC):
    """What the stepper and the reverse sweep need from a right-hand side.

    All states are flat: an inner state is [width], a state p is [size], the stages of one step are
    [S, …].

    Attributes:
        initial: p(start), flat and detached.
        inputs: the differentiable tensors θ that h depends on, in the order of the gradients that
            `Reverse.finish` returns.
        width: number of elements of the inner state.
        tape_width: number of elements that a stage records for the reverse sweep; its inner state
            comes first.
        constants: rows [c, width] that the time and the biases add to the inner state of a stage.
        stage_only: how many of these, the first ones, belong to a stage but not to the inner state
            itself.
        spent: evaluations of h that building the field took.
        own_weights: whether the field has copies of its weights, so that changing the weights does
            not affect it.
        adds_constants: whether `combined_constants` are needed.
    """

    initial: Tensor
    inputs: tuple[Tensor, ...]
    width: int
    tape_width: int
    constants: Tensor
    stage_only: int = 0
    spent: int = 0
    own_weights: bool = True
    adds_constants: bool = False

    @abstractmethod
    def enter(self) -> Tensor:
        """Return the inner state [width] at the start."""

    def constant_weights(
        self, times: Sequence[float], coupling: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the weights [S, c] of the constant rows in each stage.

        Args:
            times: times of the stages.
            coupling: how stages depend on earlier slopes [S, S], multiplied by the step's length.
        """
        return np.zeros((len(times), 0))

    @abstractmethod
    def stage(self, time: float, slope: Tensor, tape: Tensor) -> None:
        """Evaluate h at one stage.

        Args:
            time: time of the stage.
            slope: the inner slope [width]; written.
            tape: holds the inner state, constant rows included, and receives what the reverse sweep
                needs to know about this stage.
        """

    def evaluate_stages(
        self, times: Sequence[float], terms: StageTerms, weights: Tensor, tape: Tensor
    ) -> None:
        """Evaluate all stages of a step but the first, each from those before it.

        Args:
            times: times of the stages [S].
            terms: what the stages are weighted sums of; the slopes are written.
            weights: weights of these rows in each stage [S, c + 1 + S].
            tape: [S, tape_width]; written as by `stage`.
        """
        others = len(terms.rows) - len(tape)  # the constant rows and the inner state
        tape_rows = tape.unbind()
        for s in range(1, len(tape_rows)):
            torch.mv(terms.prefixes[s], weights[s, : others + s], out=tape_rows[s][: self.width])
            self.stage(times[s], terms.each_slope[s], tape_rows[s])

    def whole_steps(
        self,
        tableau: Tableau,
        sums: Tensor,
        terms: StageTerms,
        tolerances: tuple[float, float],
    ) -> WholeSteps | None:
        """Return what computes whole steps, if anything does.

        Args:
            tableau: the method.
            sums: weights of the stages in its dense output, then in the error or, without an
                estimate of it, in the change [degree + 1, S].
            terms: what the stages are weighted sums of.
            tolerances: rtol and atol, against which errors are measured.
        """
        return None

    @abstractmethod
    def combine(self, weights: Tensor, constants: Tensor, stages: Stages) -> Tensor:
        """Return weighted sums [r, size] of the slopes of p.

        Args:
            weights: of the stages [r, S].
            constants: what `combined_constants` returned, on the device.
            stages: the stages.
        """

    def combined_constants(
        self, times: Sequence[float], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the weights [r, k] of what time and biases add to sums of slopes.

        Args:
            times: times of the stages.
            weights: of the stages in each sum [r, S].
        """
        return np.zeros((len(weights), 0))

    @abstractmethod
    def reverse(self) -> Reverse:
        """Return the accumulator of one reverse sweep."""

    def measure(self, attempt: Attempt, rtol: float, atol: float) -> StepError:
        """Measure the error of a step against the tolerances, which set the scale per element."""
        return self.step_error(self.norms(attempt, rtol, atol).cpu().tolist())

    def norms(self, attempt: Attempt, rtol: float, atol: float) -> Tensor:
        """Return the numbers that the error of a step follows from, as a tensor, for which the host
        need not wait.
        """
        scale = torch.maximum(attempt.before.abs(), attempt.after.abs()).mul_(rtol).add_(atol)
        relative = torch.linalg.vector_norm(attempt.error / scale)
        return torch.stack((relative, scale.sum(), *self.gradient_norms(attempt)))

    def gradient_norms(self, attempt: Attempt) -> tuple[Tensor, ...]:
        """Return norms for `gradient_error`."""
        return ()

    def gradient_error(self, norms: Sequence[float]) -> float:
        """Return the error of what the gradient is computed from, beyond the error of the state.

        It is 0 where nothing is known about it.

        Args:
            norms: the values of `gradient_norms`.
        """
        return 0.0

    def step_error(self, norms: Sequence[float]) -> StepError:
        """Return the error of a step from the values of its `norms`."""
        relative, scale_sum, *others = norms
        size = max(1, self.initial.numel())
        return StepError(relative / size**0.5, scale_sum, self.gradient_error(others))

    def unchanged(self) -> bool:
        """Return whether the weights, as far as can be told, are those used in the solve."""
        return True

    def check_unchanged(self) -> None:
        """Raise if the weights are no longer those used in the solve."""
        if not self.unchanged():
            raise StaleTrajectoryError(
                "A parameter of the dynamics was changed in place after the trajectory was solved; "
                "solve again (or call backward before the optimiser's step)."
            )


class StageBlock(NamedTuple):
    """The recorded stages of B consecutive steps, which share the stage between neighbours.

    Attributes:
        times: of the stages of each step [B, S], float64, on the CPU.
        tape: what the stages recorded [B·(S - 1) + 1, tape_width].
    """

    times: Tensor
    tape: Tensor

    def by_step(self) -> Tensor:
        """Return the tape as a view [B, S, tape_width], in which shared stages appear twice."""
        steps, stages = self.times.shape
        width = self.tape.shape[1]
        return self.tape.as_strided(
            (steps, stages, width), ((stages - 1) * width, width, 1), self.tape.storage_offset()
        )

    def row_times(self) -> Tensor:
        """Return the time of each row of the tape."""
        return torch.cat((self.times[:, :-1].reshape(-1), self.times[-1:, -1]))


class StepCotangents(NamedTuple):
    """Cotangents that belong to one step of a reverse sweep.

    Attributes:
        first_row: row of the step's first stage in the block.
        scaled_coupling: coupling of the stages times the step's length [S + 1, S].
        slopes: cotangents of the inner slopes [S, width]; all but the first are written.
        outputs: cotangents that the outputs send to the stages [S, width]; may be changed.
    """

    first_row: int
    scaled_coupling: Tensor
    slopes: Tensor
    outputs: Tensor


@dataclass(slots=True)
class Carry:
    """Cotangents that a reverse sweep carries from each step to the step before it.

    Attributes:
        tail: cotangents of stages 2 … S, then of the inner state [S, width]: after the step when it
            is entered, before the step when it is done.
        shared_slope: cotangent of the slope of the stage that two steps share [width].
        shared_outputs: what outputs of the later step send to that stage [width].
    """

    tail: Tensor
    shared_slope: Tensor
    shared_outputs: Tensor


class Reverse(ABC):
    """One sweep from the last step to the first; accumulates the gradients of θ and p(start)."""

    @abstractmethod
    def output_cotangents(self, moments: Tensor, weights: Tensor, block: StageBlock) -> Tensor:
        """Return the cotangents [B, S, width] that the outputs send to the stages.

        Args:
            moments: cotangents [B, r, size] of the sums that `Field.combine` computed.
            weights: the weights [B, r, S] of those sums.
            block: the stages.
        """

    @abstractmethod
    def open_block(self, block: StageBlock) -> None:
        """Prepare for the stages of this block; row numbers refer to its tape from now on."""

    @abstractmethod
    def stage(self, row: int, slope_cotangent: Tensor, outputs: Tensor, out: Tensor) -> None:
        """Compute the cotangent of a stage's inner state.

        Args:
            row: of the stage in the block.
            slope_cotangent: cotangent of its inner slope.
            outputs: what the outputs send to it.
            out: the result; written.
        """

    def step(self, step: StepCotangents, carry: Carry) -> None:
        """Go back through the stages of one step, the last one first; updates `carry`."""
        tail, scaled = carry.tail, step.scaled_coupling
        slopes, outputs = step.slopes.unbind(), step.outputs.unbind()
        last, first_row = len(slopes) - 1, step.first_row
        slopes[last].copy_(carry.shared_slope)
        outputs[last].add_(carry.shared_outputs)
        self.stage(first_row + last, slopes[last], outputs[last], tail[last - 1])
        for s in reversed(range(1, last)):
            torch.mv(tail[s:].t(), scaled[s + 1 :, s], out=slopes[s])
            self.stage(first_row + s, slopes[s], outputs[s], tail[s - 1])
        torch.mv(tail.t(), scaled[1:, 0], out=carry.shared_slope)
        tail[last].copy_(tail.sum(0))

    def steps(self, couplings: Tensor, slopes: Tensor, outputs: Tensor, carry: Carry) -> None:
        """Go back through all steps of the block, the last one first; updates `carry`.

        Args:
            couplings: coupling of the stages times the length of each step [B, S + 1, S].
            slopes: cotangents of the inner slopes [B·(S - 1) + 1, width]; all but the first are
                written.
            outputs: cotangents that the outputs send to the stages [B, S, width]; may be changed.
            carry: after the last step when called, before the first on return.
        """
        stages = outputs.shape[1]
        for step in reversed(range(len(outputs))):
            row = step * (stages - 1)
            cotangents = StepCotangents(
                row, couplings[step], slopes[row : row + stages], outputs[step]
            )
            self.step(cotangents, carry)
            self.gather(row + 1, carry.tail[:-1])
            carry.shared_outputs = outputs[step, 0]

    @abstractmethod
    def gather(self, first_row: int, cotangents: Tensor) -> None:
        """Collect the cotangents [n, width] of the inner states of n rows of the block."""

    @abstractmethod
    def close_block(self, slope_cotangents: Tensor) -> None:
        """Add up the weight gradients of all stages of the block, in one product per weight."""

    @abstractmethod
    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return the gradients of p(start), flat, and of each of `Field.inputs`."""
