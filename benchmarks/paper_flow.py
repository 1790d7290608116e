"""A flow solved the way of the paper: torchdiffeq's RK4 with steps of Δ/5, and its adjoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import floater
from floater.encoders import Encoder, Flow

try:
    import torchdiffeq
except ImportError:
    torchdiffeq = None

INSTALLED = torchdiffeq is not None

STEPS_PER_TOKEN = 5
KEEP_FOR = 16
"""Steps that share a solution in the cached variant."""


class PaperFlow(Encoder):
    """Has the weights of a flow, and its place in a model.

    Every call solves from 0 to the last time with fixed steps (Appendix B.1), and its gradient is
    the continuous adjoint's (Appendix A, `odeint_adjoint`).

    Attributes:
        evaluations: evaluations of h in the forward pass of the last call.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow.sites, flow.dim, flow.delta)
        self.dynamics, self.initial = flow.dynamics, flow.initial
        self.evaluations = 0
        self._table: Tensor | None = None
        self._kept = False

    @torch.no_grad()
    def keep(self, length: int) -> None:
        """Solve once up to this length, if that was never done, and from now on return the result
        as a constant.
        """
        if self._table is None:
            self._table = self.table(length)
        self._kept = True

    def solve_always(self) -> None:
        """Solve in every call again."""
        self._kept = False

    def forward(self, times: Tensor) -> Tensor:
        """Return encodings [length, sites, dim] at the times of a table: 0, Δ, 2Δ …"""
        if self._kept and self._table is not None:
            self.evaluations = 0
            return self._table[: len(times)]
        states: Tensor = torchdiffeq.odeint_adjoint(
            self.dynamics,
            self.initial,
            times.to(self.initial.dtype),
            method="rk4",
            options={"step_size": self.delta / STEPS_PER_TOKEN},
            adjoint_params=tuple(self.dynamics.parameters()),
        )
        self.evaluations = 4 * STEPS_PER_TOKEN * (len(times) - 1)
        return states


def solve_as_the_paper(model: nn.Module) -> list[PaperFlow]:
    """Replace the flows of a model's attachment; return what replaces them."""
    attached = floater.attachment(model)
    assert attached is not None
    replaced: list[PaperFlow] = []
    for name, encoder in attached.encoders.items():
        assert isinstance(encoder, Flow)
        assert encoder.origins is None
        replaced.append(PaperFlow(encoder))
        attached.encoders[name] = replaced[-1]
    return replaced
