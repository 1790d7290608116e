"""The stepper: takes steps, keeps what evaluation and the reverse sweep need, and can go on from
where it stood.

The sequence of steps is a function of h, p(start), start and the solver alone. The last step
overshoots the time that was asked for and the dense output cuts, so that p(t) never depends on how
far anyone looked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import SolverError, StateOverflow, StepSizeUnderflow, TooManySteps
from .fields import Attempt, Field
from .kernel import mix, mixes
from .solvers import Adaptive, Solver

Sink = Callable[[int, Tensor], None]

_BLOCK_BYTES = 8 * 2**20
_SAFETY, _SHRINK, _GROW, _TREND = 0.95, 0.2, 10.0, 0.04
_LONGEST_GUESS = 1.6  # of a first step; the time between tokens is a tenth of a unit
# rows evaluated by one product: always as many, so that a row's bits do not depend on how many are
# asked for
_TOGETHER = 16
_WATCH = 4_000  # steps between two looks at the pace; a look compares the halves of that stretch
_STEADY = 1.1  # a second half longer than the first by this factor is one that still grows
_GRADIENT_SLACK = (
    10.0  # the integrals that gradients rest on may be this much coarser than the state
)
_TOO_MANY = (
    "stiff dynamics (fast decay, large weights) are not for explicit solvers: lower the weights; "
    "else raise `max_steps`, loosen the tolerance, or give the dynamics a bounded view of time"
)


class Rows:
    """Rows of equal width that grow in blocks, so that a block is one matrix and nothing is ever
    copied together.

    A step owns `stride` new rows; consecutive steps share one row, which is repeated at the head of
    each block.
    """

    def __init__(self, like: Tensor, width: int, stride: int, shared: int, keep: bool) -> None:
        self._like, self._width, self._stride, self._shared, self._keep = (
            like,
            width,
            stride,
            shared,
            keep,
        )
        room = _BLOCK_BYTES // max(1, stride * width * like.element_size())
        self.steps_per_block = max(1, min(64, room)) if keep else 1
        self._blocks: list[Tensor] = []

    def window(self, step: int) -> Tensor:
        """The rows of one step, to be written or read."""
        block, place = divmod(step, self.steps_per_block) if self._keep else (0, 0)
        if block == len(self._blocks):
            rows = self._shared + self._stride * self.steps_per_block
            self._blocks.append(self._like.new_empty(rows, self._width))
            if block and self._shared:
                self._blocks[block][: self._shared] = self._blocks[block - 1][-self._shared :]
        first = place * self._stride
        return self._blocks[block][first : first + self._stride + self._shared]

    def recycle(self) -> None:
        """Without keeping: the shared row of the next step is the last of this one."""
        if not self._keep and self._shared:
            self._blocks[0][: self._shared] = self._blocks[0][-self._shared :]

    def spans(self, steps: int) -> Iterator[tuple[int, int, Tensor]]:
        """Blocks from last to first: (first step, number of steps, their rows), for the first
        `steps` steps.
        """
        for first in reversed(range(0, steps, self.steps_per_block)):
            count = min(self.steps_per_block, steps - first)
            yield (
                first,
                count,
                self._blocks[first // self.steps_per_block][: count * self._stride + self._shared],
            )


class Path:
    """Steps taken so far along the trajectories of one field, and the means to take more.

    Args:
        field: the right-hand side with its initial state.
        solver: tableau and step rule.
        start: time of the initial state.
        keep_stages: keep what the exact reverse sweep needs.
        keep_dense: keep the interpolation polynomials, so that any time can be evaluated again.
        first_step: length of the first step, instead of a guess (adaptive solvers only).
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
        self.field, self.solver, self.tableau = field, solver, solver.tableau
        self.start = start
        self.keep_stages, self.keep_dense = keep_stages, keep_dense
        self.mixes = mixes(
            field.initial.reshape(1, -1)
        )  # decided once, so that a state has the same bits whenever it is asked for
        self.grid = [start]  # times at which steps begin and end
        self.lengths: list[float] = []  # η of each step; grid[n] + lengths[n] == grid[n + 1]
        self.evaluations = field.spent
        self.rejected = 0

        tableau, like = self.tableau, field.initial
        self.state = field.initial.clone()
        self.stages = Rows(like, field.kept_width, tableau.stages - 1, shared=1, keep=keep_stages)
        self.dense = Rows(like, like.numel(), tableau.degree + 1, shared=0, keep=keep_dense)
        # Constant rows, the inner state, and the inner slopes: a stage is one weighted sum of the
        # first of these rows.
        constants = len(field.constants)
        self._rows = like.new_empty(constants + 1 + tableau.stages, field.width)
        self._rows[:constants] = field.constants
        self._heads = [self._rows[: constants + 1 + s].t() for s in range(tableau.stages)]
        self._inner, self._slopes = self._rows[constants], self._rows[constants + 1 :]
        self._each_slope = self._slopes.unbind()
        self._coupling = np.array(tableau.coupling)
        # The dense output, then the error estimate or, for methods without one, the step itself:
        # the sum of a Hermite polynomial's coefficients would lose digits.
        last = tableau.coupling[-1] if tableau.error is None else tableau.error
        sums = torch.tensor([*zip(*tableau.dense, strict=True), last], dtype=torch.float64)
        self._sums = sums.to(like).contiguous()
        self._begun = False
        self._step = first_step
        self._last_error: float | None = None
        self._just_rejected = False

    @property
    def end(self) -> float:
        """How far the steps reach."""
        return self.grid[-1]

    @property
    def proposal(self) -> float | None:
        """Length the next step would have, for adaptive solvers."""
        return self._step

    @property
    def steps(self) -> int:
        """Number of accepted steps."""
        return len(self.lengths)

    def advance(self, end: float, sink: Sink | None = None, clip: bool = False) -> None:
        """Take steps until `end` is reached or passed; hand each step's polynomial [degree + 1,
        size] to `sink`.

        With `clip` the last step stops at `end` exactly, which makes later states depend on `end`.
        """
        if self.end >= end:
            return
        if not self._begun:
            self._begin()
        if not isinstance(self.solver, Adaptive):
            self._check_budget(end)
        while self.end < end:
            length = self._propose(end, clip)
            polynomial = self._attempt(length)
            if polynomial is None:
                continue
            self._accept(length, end if clip else math.inf)
            if sink is not None:
                sink(self.steps - 1, polynomial)
            self.stages.recycle()

    def _begin(self) -> None:
        self._inner.copy_(self.field.enter())
        first = self.stages.window(0)[0]
        torch.mv(
            self._heads[0],
            self._weights([self.start], np.zeros((1, 1)))[0, :-1],
            out=first[: self.field.width],
        )
        self._evaluate(self.start, self._each_slope[0], first)
        if not math.isfinite(self._slopes[0].sum().item()):
            largest = self._slopes[0].abs().max().item()
            what = f"as large as {largest:.1e}" if math.isfinite(largest) else "not finite"
            raise self._trouble(StateOverflow, f"the dynamics are {what} at the very first time")
        if isinstance(self.solver, Adaptive) and self._step is None:
            self._step = self._guess(self.solver)
        self._begun = True

    def _evaluate(self, time: float, slope: Tensor, kept: Tensor) -> None:
        self.field.stage(time, slope, kept)
        self.evaluations += 1

    def _weights(self, times: list[float], coupling: NDArray[np.float64]) -> Tensor:
        """Weights [S, c + 1 + S] of all rows in each stage."""
        ones = np.ones((len(times), 1))
        weights = np.concatenate((self.field.constant_weights(times, coupling), ones, coupling), 1)
        return torch.from_numpy(weights).to(self._rows)

    def _guess(self, solver: Adaptive) -> float:
        """First step: the length over which a curve of this slope and curvature errs by the
        tolerance.
        """
        rows = self.stages.window(0)
        scale = self.state.abs().mul_(solver.rtol).add_(solver.atol)
        weights = self._sums.new_tensor([[1.0]])
        slope = self.field.combine(weights, [self.start], self._slopes[:1], rows[:1])[0] / scale
        speed = _rms(slope)
        if not 0 < speed < math.inf:
            return min(1e-4 if speed else _LONGEST_GUESS, solver.max_step or math.inf)
        probe = min(1e-2, max(1e-10, 1.0 / speed))
        times = [self.start, self.start + probe]
        ahead = self._weights(times, np.array([[0.0, 0.0], [probe, 0.0]]))[1, :-1]
        torch.mv(self._heads[1], ahead, out=rows[1][: self.field.width])
        self._evaluate(times[1], self._each_slope[1], rows[1])
        moved = self.field.combine(weights, times[1:], self._slopes[1:2], rows[1:2])[0] / scale
        bend = _rms(moved - slope) / probe
        if not math.isfinite(bend):
            return min(1e-4, solver.max_step or math.inf)
        # error ≈ 1e-4 · η⁶ · speed · (bend / speed)⁵ for a curve whose derivatives keep that ratio;
        # logarithms do not overflow
        guess = _LONGEST_GUESS
        if bend > 0:
            danger = math.log(1e-4) + math.log(speed) + 5 * (math.log(bend) - math.log(speed))
            guess = min(guess, math.exp(min(1.0, max(-300.0, (math.log(1.6) - danger) / 6))))
        return min(guess, solver.max_step or math.inf)

    def _propose(self, end: float, clip: bool) -> float:
        if isinstance(self.solver, Adaptive):
            if self.steps + self.rejected >= self.solver.max_steps:
                raise self._trouble(
                    TooManySteps,
                    f"{self.solver.max_steps} steps did not reach time {end:g}",
                    _TOO_MANY,
                )
            if self.steps and self.steps % _WATCH == 0:
                self._check_pace(self.solver.max_steps, end)
            length = self._step or 1.0
        else:
            length = self.start + (self.steps + 1) * self.solver.step - self.end
        return min(length, end - self.end) if clip else length

    def _check_pace(self, budget: int, end: float) -> None:
        """Raise where the steps that are left come nowhere near `end`, instead of taking them all
        first.

        Steps that still grow are left to grow, so that dynamics which calm down get their time; and
        the pace must be ten times too slow to be believed when 4 % of the budget are used, twice
        from 20 % on. Only whether to give up depends on `end`, never a step.
        """
        half = _WATCH // 2
        first, middle, last = self.grid[-1 - _WATCH], self.grid[-1 - half], self.end
        pace = max(last - middle, 1e-300) / half
        doubt = max(2.0, 0.4 * budget / self.steps)
        left = budget - self.steps - self.rejected
        if last - middle < _STEADY * (middle - first) and doubt * left * pace < end - last:
            raise self._trouble(
                TooManySteps,
                f"at the pace of the last steps about {self.steps + (end - last) / pace:.1e} are "
                f"needed to reach time {end:g}, but max_steps is {budget}",
                _TOO_MANY,
            )

    def _attempt(self, length: float) -> Tensor | None:
        """Try one step. Returns its polynomial, or None after a rejection."""
        tableau = self.tableau
        window = self.stages.window(self.steps)
        times = [self.end + node * length for node in tableau.nodes]
        weights = self._weights(times, length * self._coupling)
        self.field.stages(times, self._rows, self._heads, weights, window)
        self.evaluations += tableau.stages - 1
        sums = self.field.combine(self._sums * length, times, self._slopes, window)
        polynomial = self.dense.window(self.steps)
        polynomial[0] = self.state
        polynomial[1:] = sums[: tableau.degree]
        arrived = self.state + sums[-1] if tableau.error is None else polynomial.sum(0)
        if isinstance(self.solver, Adaptive):
            error = self._measure(self.solver, arrived, sums[-1], window, length)
            if not self._judge(self.solver, error, length):
                return None
        elif not math.isfinite(arrived.sum().item() + self._slopes[-1].sum().item()):
            raise self._trouble(StateOverflow, "the state overflows in the next step")
        weights[-1, : self.field.passing] = 0
        self._ahead = weights[-1, :-1]  # the inner state at the end, as a sum of rows
        self._arrived = arrived
        return polynomial

    def _measure(
        self, solver: Adaptive, arrived: Tensor, error: Tensor, window: Tensor, length: float
    ) -> float:
        """Estimated error of a step, 1 being the most that is allowed."""
        step = Attempt(self.state, arrived, error, length)
        measured, total, strain = self.field.measure(
            step, self._sums[-1:], self._slopes, window, solver.rtol, solver.atol
        )
        if not math.isfinite(measured + total):
            return math.inf
        if total > 1e-3 * solver.rtol * torch.finfo(error.dtype).max:
            raise self._trouble(StateOverflow, f"the state is about to overflow {error.dtype}")
        strained = strain / (_GRADIENT_SLACK * solver.rtol)
        return max(measured, strained) if math.isfinite(strained) else math.inf

    def _judge(self, solver: Adaptive, error: float, length: float) -> bool:
        """Accept or reject, and choose the next length by its size and its trend (a PI rule)."""
        power = 1 / self.tableau.order
        if error <= 1.0:
            floor = max(error, 1e-10)
            before = floor if self._last_error is None else self._last_error
            factor = _SAFETY * floor**-power * (before / floor) ** _TREND
            factor = min(_GROW, max(_SHRINK, factor))
            if self._just_rejected:
                factor = min(1.0, factor)
            self._just_rejected = False
            self._last_error = max(error, 1e-4)
        else:
            factor = max(_SHRINK, _SAFETY * error**-power) if math.isfinite(error) else _SHRINK
            self._just_rejected = True
            self.rejected += 1
        self._step = min(length * factor, solver.max_step or math.inf)
        if error <= 1.0:
            return True
        if self._step < (shortest := 1e-14 * max(1.0, abs(self.end))):
            calm = self.state.abs().max() < 1e8 * (1 + self.field.initial.abs().max())
            speed = self._speed()
            if calm and speed * shortest > 1e-3 * (1 + self.state.abs().max().item()):
                raise self._trouble(
                    StepSizeUnderflow,
                    f"the dynamics are too large there (|h| up to {speed:.1e}) for any step to be "
                    "short enough",
                )
            if math.isfinite(error) and calm:
                advice = "loosen rtol/atol"
                if solver.rtol < 100 * torch.finfo(self.state.dtype).eps:
                    advice += (
                        f" or solve in float64 (rtol={solver.rtol:g} is too fine for "
                        f"{self.state.dtype})"
                    )
                raise self._trouble(
                    StepSizeUnderflow,
                    f"no step meets rtol={solver.rtol:g}, atol={solver.atol:g}",
                    advice,
                )
            raise self._trouble(
                StateOverflow, "the state runs away, and no further step is short enough"
            )
        return False

    def _speed(self) -> float:
        """The largest |dp/dt| where the steps stand."""
        rows = self.stages.window(self.steps)
        slope = self.field.combine(
            self._sums.new_tensor([[1.0]]), [self.end], self._slopes[:1], rows[:1]
        )
        return float(slope.abs().max().item())

    def _accept(self, length: float, end: float) -> None:
        self.state = self._arrived
        self._inner.copy_(torch.mv(self._heads[-1], self._ahead))
        self._each_slope[0].copy_(self._each_slope[-1])
        self.lengths.append(length)
        if isinstance(self.solver, Adaptive):
            self.grid.append(min(self.end + length, end))
        else:
            self.grid.append(min(self.start + self.steps * self.solver.step, end))

    def _check_budget(self, end: float) -> None:
        assert not isinstance(self.solver, Adaptive)
        needed = (end - self.start) / self.solver.step
        if needed > self.solver.max_steps:
            raise self._trouble(
                TooManySteps,
                f"{needed:.0f} steps of {self.solver.step:g} are needed to reach time {end:g}, "
                f"but max_steps is {self.solver.max_steps}",
                "take longer steps, raise `max_steps`, or use Dopri5",
            )

    def _trouble(self, kind: type[SolverError], what: str, advice: str = "") -> SolverError:
        magnitude = self.state.abs().max().item() if self.state.numel() else 0.0
        advice = (
            advice
            or "lower the weights or the learning rate of the dynamics, "
            "or give it a bounded view of time"
        )
        return kind(
            f"Solver {self.tableau.name} stopped at time {self.end:g} (largest |p| there: "
            f"{magnitude:g}): {what}; {advice}.",
            time=self.end,
            magnitude=magnitude,
        )


def evaluate(path: Path, times: np.ndarray, order: np.ndarray | None) -> Tensor:
    """States [len(times), size] at float64 `times`, advancing the path as far as needed.

    Args:
        path: steps so far; needs `keep_dense` to look at steps that were taken earlier.
        times: non-decreasing.
        order: row of the result for each time, if the result is wanted in another order.
    """
    out = path.field.initial.new_empty(len(times), path.field.initial.numel())
    scratch = out.new_empty(_TOGETHER, out.shape[1])
    place = 0

    def emit(step: int, polynomial: Tensor) -> None:
        nonlocal place
        begin = place
        place = int(np.searchsorted(times, path.grid[step + 1], side="right"))
        if place == begin:
            return
        fraction = (times[begin:place] - path.grid[step]) / path.lengths[step]
        if order is None and path.mixes:
            mix(
                torch.from_numpy(np.vander(fraction, len(polynomial), increasing=True)).float(),
                polynomial,
                out[begin:place],
            )
            return
        powers = _powers(fraction, len(polynomial)).to(out.device, out.dtype)
        for first in range(0, place - begin, _TOGETHER):
            rows = slice(begin + first, min(begin + first + _TOGETHER, place))
            whole = order is None and rows.stop - rows.start == _TOGETHER
            states = torch.mm(
                powers[first : first + _TOGETHER], polynomial, out=out[rows] if whole else scratch
            )
            if order is not None:
                out[torch.from_numpy(order[rows]).to(out.device)] = states[: rows.stop - rows.start]
            elif not whole:
                out[rows] = states[: rows.stop - rows.start]

    if len(times) == 0:
        return out
    last = float(times[-1])
    known = path.steps if path.keep_dense else 0
    for step in range(known):
        if place == len(times):
            return out
        emit(step, path.dense.window(step))
    path.advance(last, emit)
    if place < len(times):  # no step was ever needed: all times are the start
        out[place:] = path.field.initial
    return out


def _powers(fraction: NDArray[np.float64], count: int) -> Tensor:
    """1, θ, θ² … [n, count], with rows of zeros up to a multiple of `_TOGETHER`."""
    rows = -(-len(fraction) // _TOGETHER) * _TOGETHER
    powers = np.zeros((rows, count))
    powers[: len(fraction)] = np.vander(fraction, count, increasing=True)
    return torch.from_numpy(powers)


def _rms(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values).item() / max(1, values.numel()) ** 0.5)
