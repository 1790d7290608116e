"""The stepper: takes steps and records what evaluation and the reverse sweep need.

The sequence of steps depends only on h, p(start), start and the solver. The last step overshoots
the requested time and the dense output interpolates, so that p(t) never depends on which other
times were requested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ArgumentError, StateOverflow
from .device import runs_ahead, to_device
from .fields import Attempt, Field, Stages, StageTerms
from .kernel import mixes
from .rows import Rows
from .solvers import Solver
from .step_rules import StepProgress

Sink = Callable[[int, Tensor], None]
"""Receives the number of a step and its polynomial [degree + 1, size]."""
NOT_FINITE = "`initial` must be finite, but contains NaN or infinity."


class StepWeights(NamedTuple):
    """Weights of one step, where its rows are.

    Attributes:
        stages: of the terms in each stage [S, c + 1 + S].
        sums: of the stages in the dense output and the error estimate [r, S].
        constants: of what time and biases add to these sums [r, k].
    """

    stages: Tensor
    sums: Tensor
    constants: Tensor


class Stepper(StepProgress):
    """Takes steps along the trajectories of one field, and can continue from where it stopped.

    Args:
        field: the right-hand side with its initial state.
        solver: the Runge-Kutta method and its step rule.
        start: time of the initial state.
        keep_stages: store what the exact reverse sweep needs.
        keep_dense: store the interpolation polynomials, so that any time can be evaluated again.
        first_step: length of the first step; by default it is guessed (adaptive solvers only).
        plan: lengths of steps that met the tolerance before. On a device that the host runs ahead
            of, they are taken without waiting for their errors, which are checked once, afterwards.
    """

    def __init__(
        self,
        field: Field,
        solver: Solver,
        start: float,
        *,
        keep_stages: bool,
        keep_dense: bool,
        first_step: float | None = None,
        plan: Sequence[float] = (),
    ) -> None:
        super().__init__(field, solver.tableau, start)
        self.solver, self.rule = solver, solver.step_rule(first_step)
        self.keep_stages, self.keep_dense = keep_stages, keep_dense
        # Decided once, so that a state has the same bits whenever it is requested.
        self.mixes = mixes(field.initial.reshape(1, -1))
        self.evaluations = field.spent

        tableau, like = self.tableau, field.initial
        self.tape = Rows(like, field.tape_width, tableau.stages - 1, shared=1, keep=keep_stages)
        self.dense = Rows(like, like.numel(), tableau.degree + 1, shared=0, keep=keep_dense)
        self._terms = StageTerms(field.constants, tableau.stages)
        self._coupling = np.array(tableau.coupling)
        # The dense output, then the error estimate or, for methods without one, the step itself:
        # the sum of a Hermite polynomial's coefficients would lose digits.
        last = tableau.coupling[-1] if tableau.error is None else tableau.error
        sums = torch.tensor([*zip(*tableau.dense, strict=True), last], dtype=torch.float64)
        self._host_sums = sums.numpy()
        self._sums = to_device(sums, like).contiguous()
        self._no_constants = like.new_empty(len(sums), 0)
        self._whole = field.whole_steps(tableau, self._sums, self._terms, self.rule.tolerances)
        self._begun = False
        self._plan = list(plan)
        self._can_plan = keep_dense and runs_ahead(like)
        self._planned = 0  # steps taken as planned

    def advance(self, end: float, sink: Sink | None = None, clip: bool = False) -> None:
        """Take steps until `end` is reached or passed.

        Args:
            end: the time to reach.
            sink: receives each step's polynomial.
            clip: make the last step stop at `end` exactly; later states then depend on `end`.
        """
        if self.end >= end:
            return
        self.rule.check_reachable(self, end)
        if not self._begun:
            if self._can_plan and sink is None and not clip:
                self._follow_plan(end)
            if not self._begun:
                self._begin()
        while self.end < end:
            length = self.rule.propose(self, end)
            self._step(min(length, end - self.end) if clip else length, sink, end if clip else None)

    @property
    def next_plan(self) -> list[float]:
        """Lengths of steps to try when similar dynamics are solved next; none on the CPU."""
        if not self._can_plan or not self.steps:
            return []
        lengths = self.rule.next_plan(self.lengths, self._planned)
        return [*lengths, *self._plan[self.steps :]] if lengths else []

    def _follow_plan(self, end: float) -> None:
        """Take the planned steps, then wait for their errors. If one is too large, start again."""
        lengths = self.rule.plan(self, end, self._plan)
        if not lengths:
            return
        self._enter()
        norms = []
        for times, weights, length in zip(*self._prepare(lengths), lengths, strict=True):
            attempt = self._attempt(length, times, weights)
            norms.append(self.field.norms(attempt, *self.rule.tolerances))
            self._move_terms(weights.stages)
            self._accept(attempt, None)
        errors = [self.field.step_error(values) for values in torch.stack(norms).cpu().tolist()]
        self._begun = self.rule.approves(self, errors)
        self._planned = len(lengths)
        if not self._begun:
            self._plan, self._planned = [], 0
            self.grid, self.lengths = [self.start], []
            self.state = self.field.initial.clone()

    def _prepare(self, lengths: Sequence[float]) -> tuple[list[list[float]], list[StepWeights]]:
        """Return the times of the stages of consecutive steps, and their weights, which are copied
        to the device together.
        """
        grid = list(itertools.accumulate(lengths, initial=self.start))
        steps = list(zip(grid, lengths, strict=False))
        times = [[begin + node * length for node in self.tableau.nodes] for begin, length in steps]
        on_host = [
            (self._stage_weights(nodes, length * self._coupling), self._constants(nodes, length))
            for nodes, (_, length) in zip(times, steps, strict=True)
        ]
        like = self._terms.rows
        stages, constants = (to_device(np.stack(part), like) for part in zip(*on_host, strict=True))
        sums = self._sums * to_device(np.array(lengths), like).view(-1, 1, 1)
        weights = map(StepWeights, stages.unbind(), sums.unbind(), constants.unbind())
        return times, list(weights)

    def _enter(self) -> None:
        """Evaluate the slope at the start."""
        terms = self._terms
        terms.inner.copy_(self.field.enter())
        tape = self.tape.window(0)[0]
        weights = self._weights([self.start], np.zeros((1, 1)))[0, :-1]
        torch.mv(terms.prefixes[0], weights, out=tape[: self.field.width])
        self._evaluate(self.start, terms.each_slope[0], tape)

    def _begin(self) -> None:
        self._enter()
        first = self._terms.slopes[0]
        if not math.isfinite(first.sum().item()):
            if not bool(torch.isfinite(self.field.initial).all()):
                raise ArgumentError(NOT_FINITE)
            largest = first.abs().max().item()
            size = f"as large as {largest:.1e}" if math.isfinite(largest) else "not finite"
            raise self.failure(StateOverflow, f"the dynamics are {size} at the very first time")
        self.rule.begin(self)
        self._begun = True

    def _evaluate(self, time: float, slope: Tensor, tape: Tensor) -> None:
        self.field.stage(time, slope, tape)
        self.evaluations += 1

    def _stage_weights(
        self, times: list[float], coupling: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the weights [S, c + 1 + S] of all terms in each stage."""
        ones = np.ones((len(times), 1))
        return np.concatenate((self.field.constant_weights(times, coupling), ones, coupling), 1)

    def _weights(self, times: list[float], coupling: NDArray[np.float64]) -> Tensor:
        return to_device(self._stage_weights(times, coupling), self._terms.rows)

    def _constants(self, times: list[float], length: float) -> NDArray[np.float64]:
        return self.field.combined_constants(times, length * self._host_sums)

    def _step_weights(self, times: list[float], length: float) -> StepWeights:
        stages = self._weights(times, length * self._coupling)
        constants = self._no_constants
        if self.field.adds_constants:
            constants = to_device(self._constants(times, length), constants)
        return StepWeights(stages, self._sums * length, constants)

    def slope(self) -> Tensor:
        return self._state_slope(self.end, 0)

    def slope_ahead(self, length: float) -> Tensor:
        tape = self.tape.window(0)[1]
        times = [self.end, self.end + length]
        weights = self._weights(times, np.array([[0.0, 0.0], [length, 0.0]]))[1, :-1]
        torch.mv(self._terms.prefixes[1], weights, out=tape[: self.field.width])
        self._evaluate(times[1], self._terms.each_slope[1], tape)
        return self._state_slope(times[1], 1)

    def _state_slope(self, time: float, stage: int) -> Tensor:
        """Return dp/dt [size] at a stage of the current step."""
        row = slice(stage, stage + 1)
        tape = self.tape.window(self.steps)
        stages = Stages([time], self._terms.slopes[row], tape[row])
        one = np.ones((1, 1))
        constants = to_device(self.field.combined_constants([time], one), self._sums)
        return self.field.combine(self._sums.new_ones(1, 1), constants, stages)[0]

    def _step(self, length: float, sink: Sink | None, clip_at: float | None) -> None:
        """Try one step; if it is accepted, move on and hand its polynomial to `sink`."""
        begin = self.end
        times = [begin + node * length for node in self.tableau.nodes]
        tape, polynomial = self.tape.window(self.steps), self.dense.window(self.steps)
        if self._whole is not None:
            attempt = self._whole.attempt(length, times, self.state, polynomial, tape)
            self.evaluations += self.tableau.stages - 1
            if not self.rule.accepts(self, attempt):
                return
            self._whole.accept(tape)
        else:
            weights = self._step_weights(times, length)
            attempt = self._attempt(length, times, weights)
            if not self.rule.accepts(self, attempt):
                return
            self._move_terms(weights.stages)
        self._accept(attempt, clip_at)
        if sink is not None:
            sink(self.steps - 1, polynomial)
        self.tape.recycle()

    def _attempt(self, length: float, times: list[float], weights: StepWeights) -> Attempt:
        """Compute the next step and its polynomial."""
        tableau, tape = self.tableau, self.tape.window(self.steps)
        self.field.evaluate_stages(times, self._terms, weights.stages, tape)
        self.evaluations += tableau.stages - 1
        stages = Stages(times, self._terms.slopes, tape)
        sums = self.field.combine(weights.sums, weights.constants, stages)
        polynomial = self.dense.window(self.steps)
        polynomial[0] = self.state
        polynomial[1:] = sums[: tableau.degree]
        after = self.state + sums[-1] if tableau.error is None else polynomial.sum(0)
        return Attempt(length, self.state, after, sums[-1], self._sums[-1:], stages)

    def _move_terms(self, weights: Tensor) -> None:
        """Make the last stage of a step the first of the next.

        Args:
            weights: of the terms of its stages; changed.
        """
        terms = self._terms
        weights[-1, : self.field.stage_only] = 0
        terms.inner.copy_(torch.mv(terms.prefixes[-1], weights[-1, :-1]))
        terms.each_slope[0].copy_(terms.each_slope[-1])

    def _accept(self, attempt: Attempt, clip_at: float | None) -> None:
        """Move on to the end of a step, which is at `clip_at` at the latest."""
        self.state = attempt.after
        arrival = self.rule.arrival(self, attempt.length)
        self.lengths.append(attempt.length)
        self.grid.append(arrival if clip_at is None else min(arrival, clip_at))
