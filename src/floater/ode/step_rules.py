"""Step rules: how long each step is, and whether it is accepted."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import SolverError, StateOverflow, StepSizeUnderflow, TooManySteps
from .fields import Attempt, Field, StepError
from .tableaus import Tableau

_SAFETY, _SHRINK, _GROW, _TREND = 0.95, 0.2, 10.0, 0.04
_LONGEST_GUESS = 1.6  # of a first step; the time between tokens is a tenth of a unit
_PACE_WINDOW = 4_000  # steps between two checks of the pace, which compare the halves of the window
_CAUTION = 0.92  # steps are planned this much shorter than they were, to have half the error
_TOO_SMALL = 0.1  # errors below this: a third fewer steps would do
_STEADY = 1.1  # steps still grow if the second half gets further than the first by this factor
_GRADIENT_SLACK = 10.0  # how much larger the error of the gradient may be than that of the state
_TOO_MANY_STEPS = (
    "stiff dynamics (fast decay, large weights) are not suited to explicit solvers: lower the "
    "weights; otherwise raise `max_steps`, loosen the tolerance, or give the dynamics a bounded "
    "view of time"
)


class StepProgress(ABC):
    """Where the steps stand, as far as a step rule needs to know.

    Attributes:
        field: the right-hand side.
        tableau: the Runge-Kutta method.
        start: time of the initial state.
        grid: times at which steps begin and end.
        lengths: length of each step; grid[n] + lengths[n] == grid[n + 1].
        state: p at the end of the last step, flat.
    """

    def __init__(self, field: Field, tableau: Tableau, start: float) -> None:
        self.field, self.tableau, self.start = field, tableau, start
        self.grid = [start]
        self.lengths: list[float] = []
        self.state = field.initial.clone()

    @property
    def end(self) -> float:
        """Time that the steps have reached."""
        return self.grid[-1]

    @property
    def steps(self) -> int:
        """Number of accepted steps."""
        return len(self.lengths)

    @abstractmethod
    def slope(self) -> Tensor:
        """Return dp/dt at the end of the last step, flat."""

    @abstractmethod
    def slope_ahead(self, length: float) -> Tensor:
        """Return dp/dt after an Euler step of this length, flat; only before the first step."""

    def failure(self, kind: type[SolverError], reason: str, advice: str = "") -> SolverError:
        """Build the error that says where the solver stopped, why, and what to do."""
        magnitude = self.state.abs().max().item() if self.state.numel() else 0.0
        advice = advice or (
            "lower the weights or the learning rate of the dynamics, "
            "or give it a bounded view of time"
        )
        return kind(
            f"Solver {self.tableau.name} stopped at time {self.end:g} (largest |p| there: "
            f"{magnitude:g}): {reason}; {advice}.",
            time=self.end,
            magnitude=magnitude,
        )


class StepRule(ABC):
    """Chooses the steps of one solve."""

    proposal: float | None = None
    """Length of the next step, if it depends on the steps before."""

    def begin(self, progress: StepProgress) -> None:
        """Prepare for the first step, when the slope at the start is known."""
        return None

    def check_reachable(self, progress: StepProgress, end: float) -> None:
        """Raise if `end` is known to need more steps than allowed."""
        return None

    @property
    @abstractmethod
    def tolerances(self) -> tuple[float, float]:
        """rtol and atol, against which errors are measured."""

    @abstractmethod
    def plan(self, progress: StepProgress, end: float, known: Sequence[float]) -> list[float]:
        """Return the lengths of steps from the start towards `end` that can be taken before the
        error of any of them is known; none if the steps have to wait for it.

        Args:
            progress: where the steps stand: at the start.
            end: the time to reach.
            known: lengths that met the tolerance in an earlier solve of similar dynamics.
        """

    @abstractmethod
    def approves(self, progress: StepProgress, errors: Sequence[StepError]) -> bool:
        """Return whether all planned steps count."""

    @abstractmethod
    def next_plan(self, lengths: Sequence[float], planned: int) -> list[float]:
        """Return the lengths to try in the next solve.

        Args:
            lengths: of the steps of this one.
            planned: how many of them, the first ones, were planned.
        """

    @abstractmethod
    def propose(self, progress: StepProgress, end: float) -> float:
        """Return the length of the next step on the way to `end`."""

    @abstractmethod
    def accepts(self, progress: StepProgress, attempt: Attempt) -> bool:
        """Return whether the step counts; raise where no other length would help."""

    @abstractmethod
    def arrival(self, progress: StepProgress, length: float) -> float:
        """Return the time at which the next step ends."""


class FixedSteps(StepRule):
    """Steps of one length, on the grid start + n·step."""

    def __init__(self, step: float, max_steps: int) -> None:
        self._step, self._max_steps = step, max_steps

    def check_reachable(self, progress: StepProgress, end: float) -> None:
        needed = (end - progress.start) / self._step
        if needed > self._max_steps:
            raise progress.failure(
                TooManySteps,
                f"{needed:.0f} steps of {self._step:g} are needed to reach time {end:g}, "
                f"but max_steps is {self._max_steps}",
                "take longer steps, raise `max_steps`, or use Dopri5",
            )

    @property
    def tolerances(self) -> tuple[float, float]:
        return 1.0, 1.0

    def plan(self, progress: StepProgress, end: float, known: Sequence[float]) -> list[float]:
        count = math.ceil((end - progress.start) / self._step)
        grid = [progress.start + n * self._step for n in range(count + 1)]
        return [after - before for before, after in itertools.pairwise(grid)]

    def approves(self, progress: StepProgress, errors: Sequence[StepError]) -> bool:
        return all(math.isfinite(error.relative + error.scale_sum) for error in errors)

    def next_plan(self, lengths: Sequence[float], planned: int) -> list[float]:
        return []  # a plan needs no lengths from before

    def propose(self, progress: StepProgress, end: float) -> float:
        return progress.start + (progress.steps + 1) * self._step - progress.end

    def accepts(self, progress: StepProgress, attempt: Attempt) -> bool:
        last_slope = attempt.stages.slopes[-1]
        if not math.isfinite(attempt.after.sum().item() + last_slope.sum().item()):
            raise progress.failure(StateOverflow, "the state overflows in the next step")
        return True

    def arrival(self, progress: StepProgress, length: float) -> float:
        return progress.start + (progress.steps + 1) * self._step


class AdaptiveSteps(StepRule):
    """Steps whose length follows from the error of the last ones (PI control).

    Args:
        rtol, atol: tolerances of the error of a step.
        max_steps: how many steps may be tried.
        max_step: the longest step allowed.
        first_step: length of the first step; by default it is guessed.
    """

    def __init__(
        self,
        rtol: float,
        atol: float,
        max_steps: int,
        max_step: float | None = None,
        first_step: float | None = None,
    ) -> None:
        self._rtol, self._atol, self._max_steps = rtol, atol, max_steps
        self._max_step = math.inf if max_step is None else max_step
        self.proposal = first_step
        self._rejected = 0
        self._just_rejected = False
        self._last_error: float | None = None
        self._largest_planned = 0.0

    @property
    def tolerances(self) -> tuple[float, float]:
        return self._rtol, self._atol

    def plan(self, progress: StepProgress, end: float, known: Sequence[float]) -> list[float]:
        arrivals = itertools.accumulate(known, initial=progress.start)
        needed = list(itertools.takewhile(lambda arrival: arrival < end, arrivals))
        return list(known[: min(len(needed), self._max_steps)])

    def approves(self, progress: StepProgress, errors: Sequence[StepError]) -> bool:
        values = [self._compared(error) for error in errors]
        self._largest_planned = max(values)
        if not self._largest_planned <= 1.0 or any(self._overflows(progress, e) for e in errors):
            return False
        self.proposal = progress.lengths[-1]
        self._last_error = max(values[-1], 1e-4)
        return True

    def next_plan(self, lengths: Sequence[float], planned: int) -> list[float]:
        if planned and self._largest_planned < _TOO_SMALL:
            return []
        shorter = [_CAUTION * length for length in lengths[planned:]]
        missing = math.fsum(lengths[planned:]) - math.fsum(shorter)
        if shorter:  # the plan gets as far as the steps did
            shorter += [shorter[-1]] * math.ceil(missing / shorter[-1])
        return [*lengths[:planned], *shorter]

    def begin(self, progress: StepProgress) -> None:
        if self.proposal is None:
            self.proposal = min(self._guess(progress), self._max_step)

    def _guess(self, progress: StepProgress) -> float:
        """Guess the length over which a curve of this slope and curvature errs by the tolerance."""
        scale = progress.state.abs().mul_(self._rtol).add_(self._atol)
        slope = progress.slope() / scale
        speed = _rms(slope)
        if not 0 < speed < math.inf:
            return 1e-4 if speed else _LONGEST_GUESS
        probe = min(1e-2, max(1e-10, 1.0 / speed))
        bend = _rms(progress.slope_ahead(probe) / scale - slope) / probe
        if not math.isfinite(bend):
            return 1e-4
        if bend <= 0:
            return _LONGEST_GUESS
        # error ≈ 1e-4 · η⁶ · speed · (bend / speed)⁵ for a curve whose derivatives keep that ratio;
        # logarithms do not overflow
        log_error = math.log(1e-4) + math.log(speed) + 5 * (math.log(bend) - math.log(speed))
        log_length = (math.log(1.6) - log_error) / 6
        return min(_LONGEST_GUESS, math.exp(min(1.0, max(-300.0, log_length))))

    def propose(self, progress: StepProgress, end: float) -> float:
        if progress.steps + self._rejected >= self._max_steps:
            raise progress.failure(
                TooManySteps,
                f"{self._max_steps} steps did not reach time {end:g}",
                _TOO_MANY_STEPS,
            )
        if progress.steps and progress.steps % _PACE_WINDOW == 0:
            self._check_pace(progress, end)
        assert self.proposal is not None
        return self.proposal

    def _check_pace(self, progress: StepProgress, end: float) -> None:
        """Raise early where the remaining steps would come nowhere near `end`.

        Steps that still grow may continue to grow, so that dynamics which calm down get the time to
        do so; and the pace must be ten times too slow when 4 % of the steps are used, twice from
        20 % on. Only whether to give up depends on `end`, never a step.
        """
        half = _PACE_WINDOW // 2
        first, middle, last = (
            progress.grid[-1 - _PACE_WINDOW],
            progress.grid[-1 - half],
            progress.end,
        )
        pace = max(last - middle, 1e-300) / half
        doubt = max(2.0, 0.4 * self._max_steps / progress.steps)
        left = self._max_steps - progress.steps - self._rejected
        if last - middle < _STEADY * (middle - first) and doubt * left * pace < end - last:
            raise progress.failure(
                TooManySteps,
                f"at the pace of the last steps about {progress.steps + (end - last) / pace:.1e} "
                f"are needed to reach time {end:g}, but max_steps is {self._max_steps}",
                _TOO_MANY_STEPS,
            )

    def accepts(self, progress: StepProgress, attempt: Attempt) -> bool:
        error = self._error(progress, attempt)
        accepted = error <= 1.0
        power = 1 / progress.tableau.order
        factor = (
            self._after_success(error, power) if accepted else self._after_failure(error, power)
        )
        self.proposal = min(attempt.length * factor, self._max_step)
        shortest = 1e-14 * max(1.0, abs(progress.end))
        if not accepted and self.proposal < shortest:
            raise self._no_step_is_short_enough(progress, error, shortest)
        return accepted

    def _error(self, progress: StepProgress, attempt: Attempt) -> float:
        """Return the estimated error of a step; 1 is the largest that is accepted."""
        measured = attempt.measured
        if measured is None:
            measured = progress.field.measure(attempt, self._rtol, self._atol)
        error = self._compared(measured)
        if math.isfinite(measured.scale_sum) and self._overflows(progress, measured):
            dtype = progress.state.dtype
            raise progress.failure(StateOverflow, f"the state is about to overflow {dtype}")
        return error

    def _compared(self, measured: StepError) -> float:
        gradient = measured.gradient / (_GRADIENT_SLACK * self._rtol)
        if not math.isfinite(measured.relative + measured.scale_sum + gradient):
            return math.inf
        return max(measured.relative, gradient)

    def _overflows(self, progress: StepProgress, measured: StepError) -> bool:
        return measured.scale_sum > 1e-3 * self._rtol * torch.finfo(progress.state.dtype).max

    def _after_success(self, error: float, power: float) -> float:
        """Return the next length over this one, from the size and the trend of the error."""
        floor = max(error, 1e-10)
        before = floor if self._last_error is None else self._last_error
        unbounded: float = _SAFETY * floor**-power * (before / floor) ** _TREND
        factor = min(_GROW, max(_SHRINK, unbounded))
        if self._just_rejected:
            factor = min(1.0, factor)
        self._just_rejected = False
        self._last_error = max(error, 1e-4)
        return factor

    def _after_failure(self, error: float, power: float) -> float:
        self._just_rejected = True
        self._rejected += 1
        return max(_SHRINK, _SAFETY * error**-power) if math.isfinite(error) else _SHRINK

    def _no_step_is_short_enough(
        self, progress: StepProgress, error: float, shortest: float
    ) -> SolverError:
        state = progress.state
        calm = state.abs().max() < 1e8 * (1 + progress.field.initial.abs().max())
        speed = float(progress.slope().abs().max().item())
        if calm and speed * shortest > 1e-3 * (1 + state.abs().max().item()):
            return progress.failure(
                StepSizeUnderflow,
                f"the dynamics are too large there (|h| up to {speed:.1e}) for any step to be "
                "short enough",
            )
        if math.isfinite(error) and calm:
            advice = "loosen rtol/atol"
            if self._rtol < 100 * torch.finfo(state.dtype).eps:
                advice += (
                    f" or solve in float64 (rtol={self._rtol:g} is too fine for {state.dtype})"
                )
            return progress.failure(
                StepSizeUnderflow,
                f"no step meets rtol={self._rtol:g}, atol={self._atol:g}",
                advice,
            )
        return progress.failure(
            StateOverflow, "the state grows without bound, and no further step is short enough"
        )

    def arrival(self, progress: StepProgress, length: float) -> float:
        return progress.end + length


def _rms(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values).item() / max(1, values.numel()) ** 0.5)
