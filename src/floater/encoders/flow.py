"""FLOATER's encoder: learned dynamics, a starting point per site, all sites in one solve."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..config import NotNegative, Positive, PositiveInt
from ..dynamics import REACH, ActivationName, MLPDynamics
from ..errors import ArgumentError, StaleTrajectoryError
from ..ode import RK4, Dopri5, Midpoint, Pieces, Solver, Trajectory, outside_graphs
from ..times import check_times
from .base import Encoder, EncoderConfig
from .optimiser_steps import optimiser_steps
from .path_rotation import PathRotation
from .solution import Solution
from .sweeps import PendingSweeps

LENGTH = 512
"""Largest `length` that a config takes over from a model; longer models see most inputs far from
their limit.
"""
_ROWS_AHEAD = 64  # once the requested lengths grow


class FlowConfig(EncoderConfig):
    """Settings of :class:`Flow`.

    With the defaults, a new encoder is exactly zero and learns from the first step on, at a pace
    that suits a pretrained model. To train a model from scratch, use `pace="free"`.
    """

    hidden: PositiveInt | None = None
    """Width of the hidden layer of h; default: the size of the encoding."""
    activation: ActivationName = "tanh"
    """The nonlinearity of h."""
    zero_init: bool = True
    """Start with h ≡ 0 (the last layer is zero), so that a pretrained model is unchanged."""
    init_scale: NotNegative = 0.5
    """Scale of the other initial weights of h; with the safe pace, of the last layer alone."""
    initial_scale: NotNegative = 0.0
    """Standard deviation of the initial p(start); 0 starts at the origin."""
    horizon: Positive | None = None
    """T of a bounded view of time: h sees T·tanh(t/T). By default it sees t itself."""
    pace: Literal["safe", "free"] = "safe"
    """How fast training moves the encodings. "safe": by a bounded multiple of the learning rate per
    update (see docs/choose.md), whatever the width and Δ. "free": h without any scaling, as in the
    paper; the pace grows with the width and with the square of the length. Small models that are
    trained from scratch need it, long inputs of pretrained models do not bear it.
    """
    length: PositiveInt | None = None
    """Number of positions within which the pace is safe. Default: the number of positions of the
    model it is attached to, at most 512.
    """
    reach: Positive = REACH
    """With the safe pace: how far an update moves the encoding at `length`, in learning rates; the
    bound is 2.5 times that. A larger reach learns faster and first forgets more of a pretrained
    model.
    """
    rotating: bool = False
    """Let the path rotate: the encoding is R(t)·p(t), where R(t) turns pairs of dimensions with the
    frequencies of a sinusoid. With h ≡ 0 it is a sinusoid of learned amplitudes and phases, and the
    products of the encodings of q and k depend on the distance of two tokens alone.
    """
    pull: NotNegative = 0.0
    """Rate at which h draws p back to the origin; with a horizon, p(t) then comes to rest."""
    solver: Literal["dopri5", "rk4", "midpoint"] = "dopri5"
    """Solver: adaptive steps, or the fixed steps of the paper's Appendix B.1."""
    rtol: Positive = 1e-4
    """Allowed relative error of an adaptive step."""
    atol: Positive = 1e-5
    """Allowed absolute error of an adaptive step."""
    steps_per_token: PositiveInt = 5
    """Fixed steps within one Δ."""
    keep_for: PositiveInt = 1
    """Number of optimiser steps that share a solution (the paper's cached biases). In all but the
    first of them the encoding is a constant and h gets no gradient. Dynamics without a fast solver
    (with a pull, or user-defined) are solved in every step.
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
            span=(self.length or LENGTH) * self.delta if self.pace == "safe" else None,
            reach=self.reach,
        )
        return Flow(
            dynamics,
            sites,
            delta=self.delta,
            solver=self._solver(),
            initial_scale=self.initial_scale,
            keep_for=self.keep_for,
            # a pull would draw paths away from their origins
            origin_scale=1.0 if self.pace == "safe" and not self.pull else 0.0,
            rotating=self.rotating,
        )

    def fitted(self, positions: int | None) -> FlowConfig:
        if self.pace == "free" or self.length is not None:
            return self
        return self.model_copy(update={"length": min(positions or LENGTH, LENGTH)})

    def _solver(self) -> Solver:
        if self.solver == "dopri5":
            return Dopri5(rtol=self.rtol, atol=self.atol)
        return {"rk4": RK4, "midpoint": Midpoint}[self.solver](self.delta / self.steps_per_token)


class Flow(Encoder):
    """p(t) of dp/dt = h(t, p) from a learned p(start) for each site.

    All calls share a solution until a weight changes, by whatever means: the weights are compared
    bit for bit with those the solution belongs to (on accelerators, see `compares_weights`). Each
    call creates a new autograd node, so that micro-batches can be accumulated: one solve, and one
    reverse sweep per backward pass.

    With `origin_scale` > 0 each site has a fixed random origin o: its path starts at o + p(start),
    and its encodings are p(t) - o. Then h tells the sites apart from the first update on, although
    all encodings start at zero.

    Args:
        dynamics: h, any module with `forward(t, p)` and an attribute `dim`.
        sites: number of starting points.
        delta: Δ, the time between two neighbouring tokens.
        solver: the method and its step rule.
        initial_scale: standard deviation of the initial p(start).
        keep_for: number of optimiser steps that share a solution.
        origin_scale: standard deviation of the origins.
        rotating: let the path rotate; `dim` must be even.
    """

    origins: Tensor | None
    compares_weights: bool = False
    """Whether the host waits for the comparison of weights also on other devices than the CPU. By
    default it trusts there that changes are made in place, which PyTorch counts, and looks at the
    comparison later: other changes raise an error within some calls.
    """

    def __init__(
        self,
        dynamics: nn.Module,
        sites: int,
        *,
        delta: float,
        solver: Solver,
        initial_scale: float = 0.0,
        keep_for: int = 1,
        origin_scale: float = 0.0,
        rotating: bool = False,
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
        self.rotation = PathRotation(dim, delta) if rotating else None
        self.initial = nn.Parameter(torch.zeros(sites, dim))
        if initial_scale:
            nn.init.normal_(self.initial, std=initial_scale)
        origins = origin_scale * torch.randn(sites, dim) if origin_scale else None
        self.register_buffer("origins", origins)
        self.solves = 0
        self._solution: Solution | None = None
        # With keep_for > 1: the solution that training steps share, and how many there were.
        self._shared: Solution | None = None
        self._age = 0
        self._pending: PendingSweeps | None = None
        if keep_for > 1:
            optimiser_steps.tell_after(self)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", rotating" if self.rotation is not None else "")

    def forward(self, times: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():  # training may use this solution later
            with torch.inference_mode(False), torch.no_grad():
                return self._encode(check_times(times).clone())
        return self._encode(times)

    def table(self, length: int) -> Tensor:
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        mistaken = not isinstance(length, int) or length < 1
        if trained or mistaken or torch.compiler.is_compiling():
            return super().table(length)
        # Without gradients the table is kept. In generation lengths grow by one: some rows are
        # computed in advance.
        with torch.inference_mode(False), torch.no_grad(), _lock:
            solution, _ = self._current([*self.parameters(), *self.buffers()])
            kept = solution.table()
            if kept is None or len(kept) < length:
                reached = int(solution.trajectory.end / self.delta)
                ahead = 0 if kept is None else _ROWS_AHEAD
                kept = super().table(max(length, min(length + ahead, reached)))
                solution.keep(kept)
            return kept[:length]

    @outside_graphs
    def _encode(self, times: Tensor) -> Tensor:
        with _lock:
            states = self._encoded(check_times(times))
        if self.origins is not None:
            states = (states - self.origins.to(states.dtype)).to(self.initial.dtype)
        return states if self.rotation is None else self.rotation(states, times)

    @outside_graphs
    def pieces(self, end: float) -> Pieces | None:
        if self.initial.dtype not in (torch.float32, torch.float64):
            return None
        with _lock:
            solution, learns = self._current([*self.parameters(), *self.buffers()])
            pieces = solution.trajectory.pieces(end)
            coefficients = pieces.coefficients if learns else pieces.coefficients.detach()
            pending = self._collecting(coefficients)
            if pending is not None:
                coefficients = pending.coefficients(solution.trajectory, end, self.initial)
        if self.origins is not None:
            start = coefficients[:, :1] - self.origins.to(coefficients.dtype)
            coefficients = torch.cat((start, coefficients[:, 1:]), 1)
        turned = None if self.rotation is None else self.rotation.at
        return replace(pieces, coefficients=coefficients, turned=turned)

    def start(self) -> Tensor:
        """Return the states [sites, dim] at which the paths start."""
        if self.origins is None:
            return self.initial
        with torch.enable_grad():  # a solution may serve later calls that need gradients
            half = self.initial.dtype in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half else self.initial.dtype
            return self.initial.to(dtype) + self.origins.to(dtype)

    def _encoded(self, times: Tensor) -> Tensor:
        solution, learns = self._current([*self.parameters(), *self.buffers()])
        encodings = solution.trajectory(times)
        if not learns:
            return encodings.detach()
        pending = None if times.requires_grad else self._collecting(encodings)
        if pending is None:
            return encodings
        return pending.states(solution.trajectory, times, self.initial)

    def _collecting(self, outputs: Tensor) -> PendingSweeps | None:
        """What collects the cotangents of these outputs, if anything does."""
        return self._pending if outputs.requires_grad and self.initial.requires_grad else None

    def collect_cotangents(self) -> bool:
        """From now on, let backward passes only collect what a reverse sweep starts from; return
        whether they did not before.
        """
        if self._pending is not None:
            return False
        self._pending = PendingSweeps()
        optimiser_steps.tell_before(self, True)
        return True

    def stop_collecting(self) -> PendingSweeps | None:
        """Stop collecting, and return what waits for a sweep."""
        pending, self._pending = self._pending, None
        optimiser_steps.tell_before(self, False)
        if pending is not None:
            pending.close()
        return pending

    def check_step(self, parameter_ids: Set[int]) -> None:
        """Raise if an optimiser is about to step on weights whose gradients are incomplete."""
        owns = any(id(parameter) in parameter_ids for parameter in self.parameters())
        if owns and self._pending is not None:
            self._pending.refuse_step()

    def _current(self, tensors: list[Tensor]) -> tuple[Solution, bool]:
        """Return the solution to use, and whether it is that of the current weights, so that these
        get a gradient.
        """
        if self.keep_for == 1 or not self.training:
            return self._exact(tensors), True
        if self._shared is None or self._age >= self.keep_for or not self._shared.serves(tensors):
            self._shared, self._age = self._exact(tensors), 0
        return self._shared, self._shared.equals(tensors, waits=self.compares_weights)

    def count_step(self, parameter_ids: Set[int]) -> None:
        """Count an optimiser step on the parameters with these ids, if some belong to this flow."""
        if any(id(parameter) in parameter_ids for parameter in self.parameters()):
            self._age += 1

    def _exact(self, tensors: list[Tensor]) -> Solution:
        """Return the solution for the current weights."""
        solution = self._solution
        try:
            if (
                solution is not None
                and solution.fits(tensors)
                and solution.equals(tensors, waits=self.compares_weights)
            ):
                return solution
            plan = [] if solution is None else solution.finish()
        except StaleTrajectoryError:
            self._solution = self._shared = None  # so that the next call solves
            raise
        self.solves += 1
        self._solution = self._solve(tensors, plan)
        return self._solution

    def _solve(self, tensors: list[Tensor], plan: Sequence[float] = ()) -> Solution:
        """Return a new solution for these weights, which takes its steps when it is called.

        Args:
            tensors: the weights.
            plan: lengths of steps to try.
        """
        start = self.start()
        trajectory = Trajectory(
            self.dynamics,
            start,
            solver=self.solver,
            gradient="discrete",
            start=0.0,
            keep_dense=True,
            # frozen weights of a model in training may be unfrozen later
            keep_stages=self.training or any(tensor.requires_grad for tensor in tensors),
            plan=plan,
        )
        return Solution(trajectory, tensors, self.initial, start)

    def kept_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs so that a resumed run continues with the same solution.

        It is empty unless `keep_for` > 1.
        """
        if self._shared is None:
            return {}
        return {
            "age": torch.tensor(self._age),
            **{str(i): weight for i, weight in enumerate(self._shared.weights)},
        }

    @torch.no_grad()
    def load_kept_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the solution that :meth:`kept_state` described."""
        self._shared, self._age = None, 0
        if not state:
            return
        tensors = [*self.parameters(), *self.buffers()]
        current = [tensor.detach().clone() for tensor in tensors]
        for i, tensor in enumerate(tensors):
            tensor.copy_(state[str(i)])
        with torch.enable_grad():
            self._shared = self._solve(tensors)
        self._age = int(state["age"])
        for tensor, value in zip(tensors, current, strict=True):
            tensor.copy_(value)

    @property
    def steps(self) -> int:
        """Number of steps of the current solution."""
        return 0 if self._solution is None else self._solution.trajectory.steps

    @property
    def evaluations(self) -> int:
        """Number of evaluations of h in the current solution, rejected steps included."""
        return 0 if self._solution is None else self._solution.trajectory.evaluations

    def dynamics_parameters(self) -> int:
        """Return the number of parameters of h, without the starting points, as in the paper."""
        return sum(parameter.numel() for parameter in self.dynamics.parameters())

    def __getstate__(self) -> dict[str, Any]:
        """Leave the solution out of copies and pickles."""
        return {**self.__dict__, "_solution": None, "_shared": None, "_age": 0, "_pending": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.keep_for > 1:
            optimiser_steps.tell_after(self)


_lock = threading.RLock()  # threads that share a model share its solution
