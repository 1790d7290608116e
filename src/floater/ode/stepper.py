"""The stepper: takes steps and records what evaluation and the reverse sweep need.

The sequence of steps depends only on h, p(start), start and the solver. The last step overshoots
the requested time and the dense output interpolates, so that p(t) never depends on which other
times were requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import StateOverflow
from .fields import Attempt, Field, Stages, StageTerms
from .kernel import mixes
from .rows import Rows
from .solvers import Solver
from .step_rules import StepProgress

Sink = Callable[[int, Tensor], None]
"""Receives the number of a step and its polynomial [degree + 1, size]."""


class Stepper(StepProgress):
    """Takes steps along the trajectories of one field, and can continue from where it stopped.

    Args:
        field: the right-hand side with its initial state.
        solver: the Runge-Kutta method and its step rule.
        start: time of the initial state.
        keep_stages: store what the exact reverse sweep needs.
        keep_dense: store the interpolation polynomials, so that any time can be evaluated again.
        first_step: length of the first step; by default it is guessed (adaptive solvers only).
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
        self._sums = sums.to(like).contiguous()
        self._begun = False

    def advance(self, end: float, sink: Sink | None = None, clip: bool = False) -> None:
        """Take steps until `end` is reached or passed.

        Args:
            end: the time to reach.
            sink: receives each step's polynomial.
            clip: make the last step stop at `end` exactly; later states then depend on `end`.
        """
        if self.end >= end:
            return
        if not self._begun:
            self._begin()
        self.rule.check_reachable(self, end)
        while self.end < end:
            length = self.rule.propose(self, end)
            self._step(min(length, end - self.end) if clip else length, sink, end if clip else None)

    def _begin(self) -> None:
        terms = self._terms
        terms.inner.copy_(self.field.enter())
        tape = self.tape.window(0)[0]
        weights = self._weights([self.start], np.zeros((1, 1)))[0, :-1]
        torch.mv(terms.prefixes[0], weights, out=tape[: self.field.width])
        self._evaluate(self.start, terms.each_slope[0], tape)
        if not math.isfinite(terms.slopes[0].sum().item()):
            largest = terms.slopes[0].abs().max().item()
            size = f"as large as {largest:.1e}" if math.isfinite(largest) else "not finite"
            raise self.failure(StateOverflow, f"the dynamics are {size} at the very first time")
        self.rule.begin(self)
        self._begun = True

    def _evaluate(self, time: float, slope: Tensor, tape: Tensor) -> None:
        self.field.stage(time, slope, tape)
        self.evaluations += 1

    def _weights(self, times: list[float], coupling: NDArray[np.float64]) -> Tensor:
        """Return the weights [S, c + 1 + S] of all terms in each stage."""
        ones = np.ones((len(times), 1))
        weights = np.concatenate((self.field.constant_weights(times, coupling), ones, coupling), 1)
        return torch.from_numpy(weights).to(self._terms.rows)

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
        return self.field.combine(self._sums.new_tensor([[1.0]]), stages)[0]

    def _step(self, length: float, sink: Sink | None, clip_at: float | None) -> None:
        """Try one step; if it is accepted, move on and hand its polynomial to `sink`."""
        tableau, begin = self.tableau, self.end
        tape = self.tape.window(self.steps)
        times = [begin + node * length for node in tableau.nodes]
        weights = self._weights(times, length * self._coupling)
        self.field.evaluate_stages(times, self._terms, weights, tape)
        self.evaluations += tableau.stages - 1
        stages = Stages(times, self._terms.slopes, tape)
        sums = self.field.combine(self._sums * length, stages)
        polynomial = self.dense.window(self.steps)
        polynomial[0] = self.state
        polynomial[1:] = sums[: tableau.degree]
        after = self.state + sums[-1] if tableau.error is None else polynomial.sum(0)
        attempt = Attempt(length, self.state, after, sums[-1], self._sums[-1:], stages)
        if not self.rule.accepts(self, attempt):
            return
        weights[-1, : self.field.stage_only] = 0
        self._accept(attempt, weights[-1, :-1], clip_at)
        if sink is not None:
            sink(self.steps - 1, polynomial)
        self.tape.recycle()

    def _accept(self, attempt: Attempt, inner_weights: Tensor, clip_at: float | None) -> None:
        terms = self._terms
        self.state = attempt.after
        terms.inner.copy_(torch.mv(terms.prefixes[-1], inner_weights))
        terms.each_slope[0].copy_(terms.each_slope[-1])
        arrival = self.rule.arrival(self, attempt.length)
        self.lengths.append(attempt.length)
        self.grid.append(arrival if clip_at is None else min(arrival, clip_at))
