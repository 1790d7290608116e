"""`solve` and `trajectory`, the two entry points, and the `Trajectory` they work on."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ArgumentError, StateOverflow, TimesError, brief
from ..times import as_tensor
from .adjoint import AdjointGradient
from .device import runs_ahead
from .discrete import DiscreteGradient
from .fields import Dynamics
from .gradient_method import GradientMethod, GradientProblem, solved_dtype
from .output import OutputRequest
from .pieces import Pieces
from .replay import AutogradGradient
from .solvers import Adaptive, Dopri5, FixedStep, Solver
from .stepper import NOT_FINITE, Stepper

Gradient = Literal["discrete", "adjoint", "autograd"]
_GRADIENT_METHODS: dict[str, type[GradientMethod]] = {
    "discrete": DiscreteGradient,
    "adjoint": AdjointGradient,
    "autograd": AutogradGradient,
}
_Function = TypeVar("_Function", bound=Callable[..., object])
_call_lock = threading.RLock()  # a call may take steps, and threads may share a trajectory


def outside_graphs(function: _Function) -> _Function:
    """Make compiled models call this as ordinary Python: the number of steps depends on data."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return]


class Trajectory:
    """The solution p(t) from p(start), known up to the last step and continued when needed.

    Call it with times of any shape and order. States come from the steps taken so far; for later
    times it takes more steps, which gives the same bits as requesting all times at once. The result
    is differentiable in the parameters of the dynamics, in p(start) and in the times. With gradient
    "autograd" all calls share one graph, so a second backward pass through it needs
    `retain_graph=True`; the other two create a new autograd node for each call.

    Args:
        dynamics: h(t, p); see :func:`solve`.
        initial: p(start).
        solver: the method and its step rule.
        gradient: how to differentiate.
        start: the time of `initial`.
        keep_dense: store the interpolation polynomials, so that any time can be evaluated again.
        keep_stages: store what the gradient "discrete" needs; by default where gradients are
            enabled and something requires them.
        plan: the `next_plan` of a trajectory of similar dynamics. A device other than the CPU takes
            steps of these lengths without the host waiting for their errors; it waits once, at the
            end, and starts again in the usual way if the tolerance is not met.
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
        plan: Sequence[float] = (),
    ) -> None:
        _check_arguments(dynamics, initial, solver, gradient, start)
        method = _GRADIENT_METHODS[gradient]
        self._problem = GradientProblem(dynamics, initial, start, method.calls_dynamics)
        field = self._problem.field
        if keep_stages is None:
            keep_stages = torch.is_grad_enabled() and (
                initial.requires_grad or any(tensor.requires_grad for tensor in field.inputs)
            )
        self._stepper = Stepper(
            field,
            solver,
            start,
            keep_stages=keep_stages and method.uses_tape,
            keep_dense=keep_dense,
            plan=plan,
        )
        self._gradient = method(self._problem, self._stepper)

    @property
    def start(self) -> float:
        """Time of p(start)."""
        return self._stepper.start

    @property
    def end(self) -> float:
        """Time that the steps taken so far have reached."""
        return self._stepper.end

    @property
    def steps(self) -> int:
        """Number of steps taken so far."""
        return self._stepper.steps

    @property
    def grid(self) -> tuple[float, ...]:
        """Times at which the steps begin and end."""
        return tuple(self._stepper.grid)

    @property
    def next_plan(self) -> list[float]:
        """Lengths of steps to try for similar dynamics; none on the CPU, where waiting is free."""
        return self._stepper.next_plan

    @property
    def evaluations(self) -> int:
        """Number of evaluations of h so far, rejected steps included."""
        return self._stepper.evaluations

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be taken through calls of this trajectory."""
        return self._gradient.differentiable

    @property
    def own_weights(self) -> bool:
        """Whether it copied the weights, so that changing them later does not affect it."""
        return self._stepper.field.own_weights

    @property
    def unchanged(self) -> bool:
        """Whether it can still be called: no weight that it needs has changed."""
        return self._stepper.field.unchanged()

    @outside_graphs
    def __call__(self, times: Tensor) -> Tensor:
        """Return the states [*times.shape, *initial.shape] at `times` ≥ start."""
        with _call_lock:
            return self._evaluate(as_tensor(times))

    @outside_graphs
    def pieces(self, end: float) -> Pieces:
        """Return the polynomials of the steps up to the time `end`, in the type that the solver
        works in. The gradient must be "discrete", and polynomials must be stored.
        """
        with _call_lock, torch.autocast(self._problem.given_initial.device.type, enabled=False):
            if self._stepper.steps:
                self._stepper.field.check_unchanged()
            if not isinstance(self._gradient, DiscreteGradient) or not self._stepper.keep_dense:
                raise ArgumentError(
                    'The polynomials of a trajectory need gradient="discrete" and keep_dense=True, '
                    "but it was created without; call it with times instead."
                )
            return self._gradient.pieces(end)

    def _evaluate(self, times: Tensor) -> Tensor:
        flat = _finite_float64(times)
        if len(flat) and flat.min() < self.start:
            raise TimesError(
                f"`times` must not be before start = {self.start:g}, but contain {flat.min():g}."
            )
        request, given = OutputRequest.of(times, flat), self._problem.given_initial
        with torch.autocast(given.device.type, enabled=False):
            if self._stepper.steps:
                self._stepper.field.check_unchanged()
            if times.requires_grad and not self._stepper.keep_dense:
                raise ArgumentError(
                    "`times` that require gradients need a trajectory that stores its polynomials, "
                    "but this one does not; create it with keep_dense=True."
                )
            states = self._gradient.states(request)
        return _rounded(states.view(*times.shape, *given.shape), times, given.dtype)


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
    flat = _finite_float64(times)
    falls = np.nonzero(np.diff(flat) < 0)[0]
    if len(falls):
        i = int(falls[0])
        raise TimesError(
            f"`times` must be non-decreasing, but {flat[i]:g} is followed by {flat[i + 1]:g} "
            f"(index {i + 1}); sort them, or call a trajectory, which takes any order."
        )
    solution = Trajectory(
        dynamics,
        initial,
        solver=solver,
        gradient=gradient,
        start=start,
        keep_dense=times.requires_grad,
    )
    return solution(times)


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
    """Solve up to `end`; the solution can be evaluated at any time and continues when needed.

    The arguments are those of :func:`solve`, with the time to reach instead of the output times.
    """
    _check_start(start)
    if not (isinstance(end, (int, float)) and np.isfinite(end) and end >= start):
        raise TimesError(f"`end` must be a finite number ≥ start = {start:g}, but is {brief(end)}.")
    solution = Trajectory(
        dynamics, initial, solver=solver, gradient=gradient, start=start, keep_dense=True
    )
    with torch.no_grad(), torch.autocast(initial.device.type, enabled=False):
        solution._stepper.advance(float(end))
    return solution


def _rounded(states: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert states to the type of the initial state, and raise if they do not fit.

    Half-precision types are solved in float32.
    """
    rounded = states.to(dtype)
    if dtype == torch.float16:
        overflowed = ~torch.isfinite(rounded.detach())
        if bool(overflowed.any()):
            affected = overflowed.flatten(times.dim()).any(-1).to(times.device)
            first = float(times[affected].min())
            raise StateOverflow(
                f"States must be at most {torch.finfo(dtype).max:,.0f} in float16, but are larger "
                f"from t = {first:g} on; keep the dynamics and p(start) in bfloat16 or float32, or "
                "bound the view of time (`horizon`).",
                time=first,
                magnitude=float(states.detach().abs().max()),
            )
    return rounded


def _finite_float64(times: Tensor) -> NDArray[np.float64]:
    """Return times as a flat float64 array; raise if they are not finite real numbers."""
    if times.is_complex() or times.dtype == torch.bool:
        raise TimesError(f"`times` must be real numbers, but are {times.dtype}.")
    flat: NDArray[np.float64] = times.detach().reshape(-1).to("cpu", torch.float64).numpy()
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
            "does not; if h does not depend on time, write lambda t, p: h(p)."
        )
    if not isinstance(initial, Tensor) or not initial.is_floating_point():
        kind = initial.dtype if isinstance(initial, Tensor) else type(initial).__name__
        raise ArgumentError(f"`initial` must be a tensor of floating-point numbers, but is {kind}.")
    if initial.numel() == 0:
        raise ArgumentError(
            f"`initial` must contain at least one number, but has shape {tuple(initial.shape)}."
        )
    # Where the host would have to wait for the answer, the first step finds out.
    if not runs_ahead(initial) and not bool(torch.isfinite(initial.detach()).all()):
        raise ArgumentError(NOT_FINITE)
    if not isinstance(solver, (Adaptive, FixedStep)):
        raise ArgumentError(
            "`solver` must be Dopri5(), RK4(step), Midpoint(step) or Euler(step), but is "
            f"{solver!r}."
        )
    solver.check_dtype(solved_dtype(initial.dtype))
    if gradient not in tuple(_GRADIENT_METHODS):  # `in` a dict would need something hashable
        names = ", ".join(map(repr, _GRADIENT_METHODS))
        raise ArgumentError(f"`gradient` must be one of {names}, but is {gradient!r}.")
    _check_start(start)


def _takes_time_and_state(dynamics: Callable[..., object]) -> bool:
    """Return whether h can be called as h(t, p), as far as its signature tells."""
    function = dynamics.forward if isinstance(dynamics, nn.Module) else dynamics
    try:
        inspect.signature(function).bind(0.0, None)
    except TypeError:
        return False
    except ValueError:  # built-in functions may have no signature
        return True
    return True


def _check_start(start: float) -> None:
    if not (isinstance(start, (int, float)) and np.isfinite(start)):
        raise ArgumentError(f"`start` must be a finite number, but is {brief(start)}.")
