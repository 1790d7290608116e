"""`solve` and `trajectory`: the two ways in."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ArgumentError, StaleTrajectoryError, StateOverflow, TimesError, brief
from ..times import as_tensor
from .fields import CallableField, Dynamics, Field
from .gradients import Adjoint, Discrete, replay
from .solvers import Adaptive, Dopri5, FixedStep, Solver
from .stepper import Path

Gradient = Literal["discrete", "adjoint", "autograd"]
_Function = TypeVar("_Function", bound=Callable[..., object])
_ONE_AT_A_TIME = threading.RLock()  # trajectories grow when they are called; threads may share one
_FINEST = 1e-6  # of a type's rounding: the finest tolerance that is worth a try
_GRADIENTS = ("discrete", "adjoint", "autograd")


def outside_graphs(function: _Function) -> _Function:
    """Let a compiled model call this as ordinary Python: how many steps it takes is data."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return]


@runtime_checkable
class ProvidesField(Protocol):
    """Dynamics that know a faster way through the solver than being called."""

    def field(self, initial: Tensor) -> Field | None:
        """The field for this initial state, or None if calling is the only way."""

    def field_inputs(self) -> tuple[Tensor, ...]:
        """The tensors that stand behind `Field.inputs`, as they are now: the roots of a new
        autograd node.
        """


class Trajectory:
    """The solution p(t) from p(start), known at every time it has reached and able to go on.

    Call it with times of any shape and order. States come from the steps that were taken; times
    past the last step make it take more, which gives the same bits as having asked for them at
    once. The result is differentiable in the parameters of the dynamics, in p(start) and in the
    times. With gradient "autograd" the graph is shared by all calls, so a second backward through
    it needs `retain_graph=True`; the other two make a new node for each call.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        initial: Tensor,
        *,
        solver: Solver,
        gradient: Gradient,
        start: float,
        keep_dense: bool,
        keep_stages: bool | None = None,
    ) -> None:
        _check_arguments(dynamics, initial, solver, gradient, start)
        self._dynamics = dynamics
        self._root = initial
        self._gradient = gradient
        provider: object = dynamics
        self._provider = provider if isinstance(provider, ProvidesField) else None
        self._plain: CallableField | None = (
            None  # h to be called, where the fast path does not serve
        )
        with torch.autocast(initial.device.type, enabled=False):
            field = self._make_field(start)
        differentiable = torch.is_grad_enabled() and (
            initial.requires_grad or any(tensor.requires_grad for tensor in field.inputs)
        )
        keep = differentiable if keep_stages is None else keep_stages
        self._path = Path(
            field, solver, start, keep_stages=keep and gradient == "discrete", keep_dense=keep_dense
        )
        self._polynomials: list[Tensor] = []  # with gradient "autograd" only
        self._last: _LastCall | None = None

    @property
    def _initial(self) -> Tensor:
        """p(start), as wide as the solver works."""
        return (
            self._root.float()
            if self._root.dtype in (torch.float16, torch.bfloat16)
            else self._root
        )

    def _make_field(self, start: float) -> Field:
        field = None if self._provider is None else self._provider.field(self._initial)
        if field is not None and self._gradient == "discrete":
            return field
        self._plain = CallableField(self._dynamics, self._initial, start)
        return self._plain if field is None else field

    def _inputs(self) -> tuple[Tensor, ...]:
        """θ, as it stands now: the roots of a new autograd node."""
        if self._plain is not None:
            return self._plain.inputs
        return self._path.field.inputs if self._provider is None else self._provider.field_inputs()

    @property
    def start(self) -> float:
        """Time of p(start)."""
        return self._path.start

    @property
    def end(self) -> float:
        """How far the steps taken so far reach."""
        return self._path.end

    @property
    def steps(self) -> int:
        """Number of steps taken so far."""
        return self._path.steps

    @property
    def grid(self) -> tuple[float, ...]:
        """Times at which the steps begin and end."""
        return tuple(self._path.grid)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of h so far, rejected steps included."""
        return self._path.evaluations

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be taken through calls of this trajectory."""
        return self._gradient != "discrete" or self._path.keep_stages

    @property
    def own_weights(self) -> bool:
        """Whether it stays true to the weights it was solved with when these are changed."""
        return self._path.field.own_weights

    @property
    def unchanged(self) -> bool:
        """Whether it can still be called: nobody changed weights that it needs."""
        return self._path.field.unchanged()

    @outside_graphs
    def __call__(self, times: Tensor) -> Tensor:
        """States [*times.shape, *initial.shape] at `times` ≥ start."""
        with _ONE_AT_A_TIME:
            return self._evaluate(as_tensor(times))

    def _evaluate(self, times: Tensor) -> Tensor:
        flat = _numbers(times)
        if len(flat) and flat.min() < self.start:
            raise TimesError(
                f"`times` must not lie before start = {self.start:g}, but contain {flat.min():g}."
            )
        order = None
        if np.any(np.diff(flat) < 0):
            order = np.argsort(flat, kind="stable")
            flat = flat[order]
        with torch.autocast(self._initial.device.type, enabled=False):
            states = self._states(flat, order, times)
        return _rounded(states.view(*times.shape, *self._root.shape), times, self._root.dtype)

    def _states(self, flat: np.ndarray, order: np.ndarray | None, times: Tensor) -> Tensor:
        path, field = self._path, self._path.field
        if path.steps:
            field.check_unchanged()
        initial = self._initial.reshape(-1)
        if times.requires_grad and not path.keep_dense:
            raise ArgumentError(
                "`times` that require gradients need a trajectory that keeps its polynomials."
            )
        if self._gradient == "autograd":
            return self._replayed(flat, order, times)
        if self._gradient == "adjoint":
            return _apply(Adjoint, path, self._plain, flat, order, times, initial, *self._inputs())
        inputs = (initial, *self._inputs())
        if (
            not path.keep_stages
            and torch.is_grad_enabled()
            and any(tensor.requires_grad for tensor in inputs)
        ):
            raise StaleTrajectoryError(
                "This trajectory was solved with gradients off (torch.no_grad), but gradients are "
                "asked of it now; solve again with gradients on, or call it under torch.no_grad()."
            )
        if times.requires_grad and not path.steps:  # the slope at the start needs a step
            with torch.no_grad():
                path.advance(_just_after(path.start))
        again = self._last.states(flat, order) if self._last is not None else None
        states = _apply(Discrete, path, flat, order, again, times, *inputs)
        if path.keep_dense and again is None:
            self._last = _LastCall(flat, order, states)
        return states

    def _replayed(self, flat: np.ndarray, order: np.ndarray | None, times: Tensor) -> Tensor:
        path = self._path
        initial = self._initial
        if len(flat):
            with torch.no_grad():
                path.advance(
                    _just_after(float(flat[-1])) if times.requires_grad else float(flat[-1])
                )
        state = self._polynomials[-1].sum(0) if self._polynomials else initial.reshape(-1)
        self._polynomials += replay(path, self._dynamics, initial, len(self._polynomials), state)
        if not self._polynomials:
            return initial.reshape(1, -1).expand(len(flat), -1)
        step = np.searchsorted(np.asarray(path.grid[1:]), flat, side="left")
        begin = torch.tensor(np.asarray(path.grid)[step])
        length = torch.tensor(np.asarray(path.lengths)[step])
        requested = times.reshape(-1).to(torch.float64)
        if order is not None:
            requested = requested[torch.from_numpy(order).to(requested.device)]
        theta = ((requested.cpu() - begin) / length).to(initial).unsqueeze(1)
        coefficients = torch.stack(self._polynomials)[torch.from_numpy(step).to(initial.device)]
        states = coefficients[:, -1]
        for degree in reversed(range(path.tableau.degree)):
            states = states * theta + coefficients[:, degree]
        if order is None:
            return states
        return states[torch.from_numpy(np.argsort(order)).to(initial.device)]


class _LastCall:
    """The states of the last call: a training step asks for the same times again and again."""

    def __init__(self, times: np.ndarray, order: np.ndarray | None, states: Tensor) -> None:
        self._times, self._order, self._states = times.copy(), order, states.detach()
        self._version = self._states._version

    def states(self, times: np.ndarray, order: np.ndarray | None) -> Tensor | None:
        """The states, if the same times are asked for and nobody has written into them since."""
        same = order is None and self._order is None and self._states._version == self._version
        return self._states if same and np.array_equal(times, self._times) else None


@outside_graphs
def solve(
    dynamics: Dynamics,
    initial: Tensor,
    times: Tensor,
    *,
    solver: Solver = Dopri5(),
    gradient: Gradient = "discrete",
    start: float = 0.0,
) -> Tensor:
    """Solve dp/dt = dynamics(t, p) from p(start) = initial, for all rows of `initial` at once.

    Args:
        dynamics: h(t, p) with t a float and p of initial's shape; a module or any callable.
        initial: p(start), of any shape.
        times: 1-D, non-decreasing, ≥ start; may repeat, be irregular, and need not contain start.
        solver: the method and its step rule.
        gradient: "discrete" (exact for the steps taken), "adjoint" (the paper's Appendix A) or
            "autograd".
        start: the time of `initial`.

    Returns:
        States [len(times), *initial.shape].
    """
    times = as_tensor(times)
    if times.ndim != 1:
        raise TimesError(
            f"`times` must be 1-D, but have shape {tuple(times.shape)}; call a trajectory for other"
            " shapes."
        )
    flat = _numbers(times)
    falls = np.nonzero(np.diff(flat) < 0)[0]
    if len(falls):
        i = int(falls[0])
        raise TimesError(
            f"`times` must be non-decreasing, but {flat[i]:g} is followed by {flat[i + 1]:g} (place"
            f" {i + 1}); sort them, or call a trajectory, which takes any order."
        )
    whole = Trajectory(
        dynamics,
        initial,
        solver=solver,
        gradient=gradient,
        start=start,
        keep_dense=times.requires_grad,
    )
    return whole(times)


@outside_graphs
def trajectory(
    dynamics: Dynamics,
    initial: Tensor,
    end: float,
    *,
    solver: Solver = Dopri5(),
    gradient: Gradient = "discrete",
    start: float = 0.0,
) -> Trajectory:
    """Solve up to `end` and keep the solution, to be evaluated at any times and continued when
    asked for later ones.

    Arguments are those of :func:`solve`, with the time to reach in place of the output times.
    """
    _check_start(start)
    if not (isinstance(end, (int, float)) and np.isfinite(end) and end >= start):
        raise TimesError(f"`end` must be a finite number ≥ start = {start:g}, but is {brief(end)}.")
    whole = Trajectory(
        dynamics, initial, solver=solver, gradient=gradient, start=start, keep_dense=True
    )
    with torch.no_grad(), torch.autocast(initial.device.type, enabled=False):
        whole._path.advance(float(end))
    return whole


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def _rounded(states: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """States in the type of the initial value.

    They are solved in float32 where that is a half, and may not fit.
    """
    rounded = states.to(dtype)
    if dtype == torch.float16:
        lost = ~torch.isfinite(rounded.detach())
        if bool(lost.any()):
            first = float(times[lost.flatten(times.dim()).any(-1).to(times.device)].min())
            raise StateOverflow(
                f"States must be at most {torch.finfo(dtype).max:,.0f} in float16, but are larger "
                f"from t = {first:g} on; keep the dynamics and p(start) in bfloat16 or float32, or "
                "bound the view of time (`horizon`).",
                time=first,
                magnitude=float(states.detach().abs().max()),
            )
    return rounded


def _numbers(times: Tensor) -> np.ndarray:
    """Times as a flat float64 array, checked to be finite."""
    if times.is_complex() or times.dtype == torch.bool:
        raise TimesError(f"`times` must be real numbers, but are {times.dtype}.")
    flat = times.detach().reshape(-1).to("cpu", torch.float64).numpy()
    if not np.isfinite(flat).all():
        raise TimesError(f"`times` must be finite, but contain {flat[~np.isfinite(flat)][0]}.")
    return flat


def _check_arguments(
    dynamics: object, initial: Tensor, solver: Solver, gradient: str, start: float
) -> None:
    if isinstance(dynamics, type) or not callable(dynamics):
        raise ArgumentError(
            f"`dynamics` must be a module or a function h(t, p), but is {brief(dynamics)}."
        )
    if not _takes_time_and_state(dynamics):
        raise ArgumentError(
            f"`dynamics` must take two arguments, the time and the state, but {brief(dynamics)} "
            "does not; where h knows no time, write lambda t, p: h(p)."
        )
    if not isinstance(initial, Tensor) or not initial.is_floating_point():
        kind = initial.dtype if isinstance(initial, Tensor) else type(initial).__name__
        raise ArgumentError(f"`initial` must be a tensor of floating-point numbers, but is {kind}.")
    if initial.numel() == 0:
        raise ArgumentError(
            f"`initial` must hold at least one number, but has shape {tuple(initial.shape)}."
        )
    if not bool(torch.isfinite(initial.detach()).all()):
        raise ArgumentError("`initial` must be finite, but contains NaN or infinity.")
    if not isinstance(solver, (Adaptive, FixedStep)):
        raise ArgumentError(
            "`solver` must be Dopri5(), RK4(step), Midpoint(step) or Euler(step), but is "
            f"{solver!r}."
        )
    _check_tolerance(solver, initial.dtype)
    if gradient not in _GRADIENTS:
        raise ArgumentError(
            f"`gradient` must be one of {', '.join(map(repr, _GRADIENTS))}, but is {gradient!r}."
        )
    _check_start(start)


def _check_tolerance(solver: Solver, dtype: torch.dtype) -> None:
    """Refuse a tolerance far below the rounding of the numbers that are solved in: no step could
    ever meet it.
    """
    if not isinstance(solver, Adaptive):
        return
    solved = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    least = _FINEST * torch.finfo(solved).eps
    if solver.rtol < least:
        other = ", or solve in float64" if solved == torch.float32 else ""
        raise ArgumentError(
            f"`rtol` of {type(solver).__name__} must be at least {least:.1e} for {solved}, but is "
            f"{solver.rtol:g}, which is too fine for its rounding; loosen rtol{other}."
        )


def _takes_time_and_state(dynamics: Callable[..., object]) -> bool:
    """Whether h can be called as h(t, p), as far as its signature tells."""
    try:
        inspect.signature(dynamics.forward if isinstance(dynamics, nn.Module) else dynamics).bind(
            0.0, None
        )
    except TypeError:
        return False
    except ValueError:  # built-in functions may have no signature
        return True
    return True


def _just_after(time: float) -> float:
    return time + 1e-12 * max(1.0, abs(time))


def _check_start(start: float) -> None:
    if not (isinstance(start, (int, float)) and np.isfinite(start)):
        raise ArgumentError(f"`start` must be a finite number, but is {brief(start)}.")
