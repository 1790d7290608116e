"""The problem that benchmarks/solver.py solves, the methods it compares, and a reference."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import floater
from floater.ode import Solver

try:
    import torchdiffeq
except ImportError:
    torchdiffeq = None

INSTALLED = torchdiffeq is not None  # the competitor
DIM, TRAJECTORIES, DELTA, SEED = 512, 18, 0.1, 0
SEGMENT = 256  # positions of the reference held in memory at once


@dataclass(frozen=True)
class Problem:
    """The problem, and the cotangent of the backward pass."""

    dynamics: floater.MLPDynamics
    initial: Tensor
    times: Tensor
    cotangent: Tensor

    @classmethod
    def make(cls, positions: int) -> Problem:
        torch.manual_seed(SEED)
        dynamics = floater.MLPDynamics(DIM, activation="tanh", init_scale=0.5)
        initial = torch.randn(TRAJECTORIES, DIM).requires_grad_()
        times = torch.arange(positions, dtype=torch.float64) * DELTA
        return cls(dynamics, initial, times, torch.randn(positions, TRAJECTORIES, DIM))

    def double(self) -> Problem:
        """The same problem, to the bit, in float64."""
        dynamics = floater.MLPDynamics(DIM, activation="tanh").double()
        dynamics.load_state_dict(self.dynamics.state_dict())
        initial = self.initial.detach().double().requires_grad_()
        return Problem(dynamics, initial, self.times, self.cotangent.double())

    @property
    def positions(self) -> int:
        return len(self.times)

    @property
    def inputs(self) -> list[Tensor]:
        return [self.initial, *self.dynamics.parameters()]


@dataclass(frozen=True)
class Answer:
    """States at all positions, and gradients of p(start) and the weights."""

    states: Tensor
    gradients: tuple[Tensor, ...]

    def state_error(self, reference: Answer) -> float:
        return state_error(self.states, reference)

    def gradient_error(self, reference: Answer) -> float:
        pairs = zip(self.gradients, reference.gradients, strict=True)
        return max(float((ours.double() - true).norm() / true.norm()) for ours, true in pairs)


@dataclass(frozen=True)
class Contestant:
    """One way to solve the problem.

    Args:
        key: name in the JSON.
        label: name in the table.
        solve: states [positions, trajectories, dim], ready for backward.
        evaluations: evaluations of h in the forward pass, if known in advance.
        saved_tensors: tensors of the state's size that each evaluation saves for the backward pass.
        count: counts the evaluations if h is not called as a module.
    """

    key: str
    label: str
    solve: Callable[[Problem], Tensor]
    evaluations: Callable[[int], int] | None = None
    saved_tensors: int = 0
    count: Callable[[Problem], int] | None = None


# --- the contestants ---


def solve_ours(
    problem: Problem, solver: Solver | None = None, gradient: Any = "discrete"
) -> Tensor:
    solver = floater.Dopri5() if solver is None else solver
    states: Tensor = floater.solve(
        problem.dynamics, problem.initial, problem.times, solver=solver, gradient=gradient
    )
    return states


def solve_by_tensors(problem: Problem) -> Tensor:
    """Solve without the kernel; the backward pass does without it too."""
    before = os.environ.get("FLOATER_KERNEL")
    os.environ["FLOATER_KERNEL"] = "0"
    try:
        return solve_ours(problem)
    finally:
        os.environ.pop("FLOATER_KERNEL")
        if before is not None:
            os.environ["FLOATER_KERNEL"] = before


def count_ours(problem: Problem, solver: Solver | None = None) -> int:
    solver = floater.Dopri5() if solver is None else solver
    with torch.no_grad():
        solution: floater.Trajectory = floater.trajectory(
            problem.dynamics, problem.initial.detach(), float(problem.times[-1]), solver=solver
        )
    return solution.evaluations


def solve_fixed(problem: Problem, method: str) -> Tensor:
    options = {"step_size": DELTA / 5}
    states: Tensor = torchdiffeq.odeint(
        problem.dynamics, problem.initial, problem.times.float(), method=method, options=options
    )
    return states


def solve_fixed_adjoint(problem: Problem, method: str) -> Tensor:
    states: Tensor = torchdiffeq.odeint_adjoint(
        problem.dynamics,
        problem.initial,
        problem.times.float(),
        method=method,
        options={"step_size": DELTA / 5},
        adjoint_params=tuple(problem.dynamics.parameters()),
    )
    return states


def solve_adaptive(problem: Problem, tolerance: float) -> Tensor:
    times = problem.times.to(problem.initial.dtype)
    states: Tensor = torchdiffeq.odeint(
        problem.dynamics,
        problem.initial,
        times,
        method="dopri5",
        rtol=tolerance,
        atol=tolerance / 10,
    )
    return states


def fixed_evaluations(positions: int, stages: int) -> int:
    return (positions - 1) * 5 * stages


OURS = Contestant("ours", "ours, defaults", solve_ours, count=count_ours)
MIDPOINT = Contestant(
    "torchdiffeq-midpoint",
    "torchdiffeq midpoint Δ/5, autograd",
    partial(solve_fixed, method="midpoint"),
    evaluations=partial(fixed_evaluations, stages=2),
    saved_tensors=6,
)
ADJOINT = Contestant(
    "torchdiffeq-rk4-adjoint",
    "torchdiffeq rk4 Δ/5, adjoint",
    partial(solve_fixed_adjoint, method="rk4"),
    evaluations=partial(fixed_evaluations, stages=4),
)
OURS_ADJOINT = Contestant(
    "ours-adjoint", "ours, adjoint", partial(solve_ours, gradient="adjoint"), count=count_ours
)
OURS_RK4 = Contestant(
    "ours-rk4",
    "ours, RK4 Δ/5",
    partial(solve_ours, solver=floater.RK4(DELTA / 5)),
    evaluations=partial(fixed_evaluations, stages=4),
    saved_tensors=3,
    count=partial(count_ours, solver=floater.RK4(DELTA / 5)),
)


OURS_TENSORS = Contestant(
    "ours-tensors", "ours, without the kernel", solve_by_tensors, count=count_ours
)


def adaptive(tolerance: float, key: str = "torchdiffeq-dopri5") -> Contestant:
    label = f"torchdiffeq dopri5 {tolerance:.1e}, autograd"
    return Contestant(key, label, partial(solve_adaptive, tolerance=tolerance), saved_tensors=6)


STRICT = adaptive(1e-5, "torchdiffeq-dopri5-strict")


# --- the reference ---


def run(contestant: Contestant, problem: Problem) -> Answer:
    """One forward and one backward pass."""
    states = contestant.solve(problem)
    return Answer(
        states.detach(), torch.autograd.grad(states, problem.inputs, grad_outputs=problem.cotangent)
    )


def reference_answer(problem: Problem) -> Answer:
    """Float64 RK4 at Δ/20 with its discrete gradient, one segment in memory at a time, from the
    last to the first.
    """
    problem = problem.double()
    bounds = [*range(0, problem.positions - 1, SEGMENT), problem.positions - 1]
    spans = list(pairwise(bounds))
    begins = [problem.initial.detach()]
    with torch.no_grad():
        for first, last in spans[:-1]:
            begins.append(_segment(problem, begins[-1], first, last)[-1].clone())
    states = torch.empty_like(problem.cotangent)
    states[0] = problem.initial.detach()
    gradients = [torch.zeros_like(tensor) for tensor in problem.inputs]
    for (first, last), begin in zip(reversed(spans), reversed(begins), strict=True):
        leaf = begin.requires_grad_()
        segment = _segment(problem, leaf, first, last)
        cotangent = problem.cotangent[first + 1 : last + 1].clone()
        cotangent[-1] += gradients[0]
        parts = torch.autograd.grad(
            segment, [leaf, *problem.dynamics.parameters()], grad_outputs=cotangent
        )
        gradients = [
            parts[0],
            *(total + part for total, part in zip(gradients[1:], parts[1:], strict=True)),
        ]
        states[first + 1 : last + 1] = segment.detach()
    return Answer(states, (gradients[0] + problem.cotangent[0], *gradients[1:]))


def _segment(problem: Problem, begin: Tensor, first: int, last: int) -> Tensor:
    """States after `first` up to `last`."""
    times = problem.times[first + 1 : last + 1]
    start = float(problem.times[first])
    states: Tensor = floater.solve(
        problem.dynamics, begin, times, solver=floater.RK4(DELTA / 20), start=start
    )
    return states


def check_reference(positions: int = 16) -> dict[str, float]:
    """How far the reference is from torchdiffeq's dopri5 in float64 at a tight tolerance."""
    problem = Problem.make(positions)
    reference = reference_answer(problem)
    other = run(adaptive(1e-11), problem.double())
    return {
        "state_error": other.state_error(reference),
        "gradient_error": other.gradient_error(reference),
    }


def state_error(states: Tensor, reference: Answer) -> float:
    return float((states.double() - reference.states).abs().max() / reference.states.abs().max())
