"""FLOATER's own encoder: one learned law of motion, one starting point for each site, all sites in
one solve.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, Literal
from weakref import WeakSet

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..dynamics import ActivationName, MLPDynamics
from ..errors import ArgumentError
from ..ode import RK4, Dopri5, Midpoint, Trajectory, outside_graphs
from ..ode import Solver as AnySolver
from ..times import check_times
from .base import Count, Encoder, EncoderConfig, Positive


class FlowConfig(EncoderConfig):
    """Settings of :class:`Flow`.

    As they stand, a fresh encoder is exactly zero and learns from the first step on.
    """

    hidden: Count | None = None
    """Width of the hidden layer of h; the size of the encoding unless given."""
    activation: ActivationName = "tanh"
    """The nonlinearity of h."""
    zero_init: bool = True
    """Start with h ≡ 0 (the last layer is zero), so that a pretrained model is left as it is."""
    init_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """Scale of the other initial weights of h."""
    initial_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Standard deviation of the initial p(start); 0 starts at the origin."""
    horizon: Positive | None = None
    """Bounded view of time: h sees T·tanh(t/T). Off unless given."""
    pull: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Rate at which h draws p back to the origin; with a horizon, paths then come to rest."""
    solver: Literal["dopri5", "rk4", "midpoint"] = "dopri5"
    """How to solve: with steps that adapt, or with the fixed steps of the paper's Appendix B.1."""
    rtol: Positive = 1e-4
    """Allowed relative error of an adaptive step."""
    atol: Positive = 1e-5
    """Allowed absolute error of an adaptive step."""
    steps_per_token: Count = 5
    """Fixed steps within one Δ."""
    keep_for: Count = 1
    """Keep a solution for so many optimiser steps (the paper's cached biases). In the steps
    between, the encoding is a constant and h gets no gradient. Dynamics off the solver's fast path
    (a pull, one's own) are solved in every step.
    """

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Flow:
        dynamics = MLPDynamics(
            dim,
            self.hidden,
            activation=self.activation,
            init_scale=self.init_scale,
            zero_init=self.zero_init,
            horizon=self.horizon,
            pull=self.pull,
        )
        return Flow(
            dynamics,
            sites,
            delta=self.delta,
            solver=self._solver(),
            initial_scale=self.initial_scale,
            keep_for=self.keep_for,
        )

    def _solver(self) -> AnySolver:
        if self.solver == "dopri5":
            return Dopri5(rtol=self.rtol, atol=self.atol)
        return {"rk4": RK4, "midpoint": Midpoint}[self.solver](self.delta / self.steps_per_token)


class Flow(Encoder):
    """p(t) of dp/dt = h(t, p) from a learned p(start) for each site.

    The solution is reused by every call until a weight changes, however it was changed: the weights
    are compared, bit for bit, with those the solution belongs to. Each call makes a new autograd
    node over it, so that micro-batches can be accumulated: one solve, one reverse sweep a backward.

    Args:
        dynamics: h, any module with `forward(t, p)` and an attribute `dim`.
        sites: number of starting points.
        delta: Δ, the time between two neighbouring tokens.
        solver: how to solve.
        initial_scale: standard deviation of the initial p(start).
        keep_for: optimiser steps for which a solution is kept.
    """

    def __init__(
        self,
        dynamics: nn.Module,
        sites: int,
        *,
        delta: float,
        solver: AnySolver,
        initial_scale: float = 0.0,
        keep_for: int = 1,
    ) -> None:
        dim = getattr(dynamics, "dim", None)
        if not isinstance(dim, int):
            raise ArgumentError(
                f"`dynamics` must have an attribute `dim`, but {type(dynamics).__name__} has none."
            )
        super().__init__(sites, dim, delta)
        self.dynamics = dynamics
        self.solver = solver
        self.keep_for = keep_for
        self.initial = nn.Parameter(torch.zeros(sites, dim))
        if initial_scale:
            nn.init.normal_(self.initial, std=initial_scale)
        self.solves = 0
        self._solution: _Solution | None = None
        self._kept: _Solution | None = (
            None  # with keep_for > 1: the solution that training holds on to
        )
        self._age = 0  # optimiser steps for which it has been held
        _steps.follow(self)

    def forward(self, times: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():  # what is made here must serve training too
            with torch.inference_mode(False), torch.no_grad():
                return self._encode(check_times(times).clone())
        return self._encode(times)

    @outside_graphs
    def _encode(self, times: Tensor) -> Tensor:
        with _lock:
            return self._encoded(check_times(times))

    def _encoded(self, times: Tensor) -> Tensor:
        tensors = [*self.parameters(), *self.buffers()]
        if self.keep_for > 1 and self.training:
            if self._kept is None or not self._kept.serves(tensors) or self._age >= self.keep_for:
                self._kept, self._age = self._exact(tensors), 0
            encodings = self._kept.trajectory(times)
            return encodings if self._kept.equals(tensors) else encodings.detach()
        return self._exact(tensors).trajectory(times)

    def stepped(self, held: Set[int]) -> None:
        """An optimiser has made a step on the parameters with these ids."""
        if any(id(parameter) in held for parameter in self.parameters()):
            self._age += 1

    def _exact(self, tensors: list[Tensor]) -> _Solution:
        """The solution for the weights as they are now."""
        solution = self._solution
        if solution is None or not (solution.fits(tensors) and solution.equals(tensors)):
            self.solves += 1
            solution = self._solution = _Solution(self, tensors)
        return solution

    def kept_state(self) -> dict[str, Tensor]:
        """With `keep_for` > 1: what a checkpoint must hold so that a resumed run keeps the same
        solution as long; else empty.
        """
        if self._kept is None:
            return {}
        return {
            "age": torch.tensor(self._age),
            **{str(i): weight for i, weight in enumerate(self._kept.weights)},
        }

    @torch.no_grad()
    def load_kept_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up the solution that :meth:`kept_state` described."""
        self._kept, self._age = None, 0
        if not state:
            return
        tensors = [*self.parameters(), *self.buffers()]
        now = [tensor.detach().clone() for tensor in tensors]
        for i, tensor in enumerate(tensors):
            tensor.copy_(state[str(i)])
        with torch.enable_grad():
            self._kept = _Solution(self, tensors)
        self._age = int(state["age"])
        for tensor, value in zip(tensors, now, strict=True):
            tensor.copy_(value)

    @property
    def steps(self) -> int:
        """Steps that the present solution consists of."""
        return 0 if self._solution is None else self._solution.trajectory.steps

    @property
    def evaluations(self) -> int:
        """Evaluations of h that the present solution took, rejected steps included."""
        return 0 if self._solution is None else self._solution.trajectory.evaluations

    def dynamics_parameters(self) -> int:
        """Parameters of h alone, as the paper counts: without the starting points."""
        return sum(parameter.numel() for parameter in self.dynamics.parameters())

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the solution behind."""
        return {**self.__dict__, "_solution": None, "_kept": None, "_age": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _steps.follow(self)


class _Solution:
    """A trajectory together with the weights it belongs to."""

    def __init__(self, flow: Flow, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self.weights = [tensor.detach().clone() for tensor in tensors]
        self.trajectory = Trajectory(
            flow.dynamics,
            flow.initial,
            solver=flow.solver,
            gradient="discrete",
            start=0.0,
            keep_dense=True,
            keep_stages=flow.training
            or any(tensor.requires_grad for tensor in tensors),  # may be thawed later
        )

    def fits(self, tensors: list[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged in shape, type and device, and gradients
        can flow where wanted.
        """
        if not self.trajectory.unchanged:  # an optimiser's step of length zero is one, too
            return False
        return len(tensors) == len(self.weights) and all(
            tensor is known
            and tensor.shape == weight.shape
            and tensor.dtype == weight.dtype
            and tensor.device == weight.device
            and (self.trajectory.differentiable or not tensor.requires_grad)
            for tensor, known, weight in zip(tensors, self._tensors, self.weights, strict=True)
        )

    def serves(self, tensors: list[Tensor]) -> bool:
        """Whether it may be held on to while the weights change."""
        return self.fits(tensors) and (self.trajectory.own_weights or self.equals(tensors))

    def equals(self, tensors: list[Tensor]) -> bool:
        """Whether these are the weights of this solution, bit for bit."""
        return all(
            torch.equal(tensor, weight)
            for tensor, weight in zip(tensors, self.weights, strict=True)
        )


class _Steps:
    """Tells flows that hold on to a solution when an optimiser has made a step on weights of
    theirs.
    """

    def __init__(self) -> None:
        self._flows: WeakSet[Flow] = WeakSet()
        register_optimizer_step_post_hook(self)

    def follow(self, flow: Flow) -> None:
        """Tell this flow."""
        if flow.keep_for > 1:
            self._flows.add(flow)

    def __call__(self, optimiser: Optimizer, *_: object) -> None:
        if self._flows:
            held = {
                id(parameter) for group in optimiser.param_groups for parameter in group["params"]
            }
            for flow in self._flows:
                flow.stepped(held)


_steps = _Steps()
_lock = threading.RLock()  # threads that share a model share its solution
