"""The paper's alternative to an ODE (Table 6): a recurrent network over positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..config import Positive
from ..dynamics import sinusoid_frequencies
from ..errors import LengthError
from .base import Encoder, EncoderConfig, to_index

_LONGEST = 200_000
"""Number of positions; each takes about ten microseconds and one row of memory."""


class RecurrentConfig(EncoderConfig):
    """Settings of :class:`Recurrent`."""

    layers: Annotated[int, Field(ge=1, le=2)] = 1
    """Number of layers per step, each of which sees the input."""
    input: Literal["scalar", "vector"] = "scalar"
    """What a layer sees of the position: the time t = i·Δ, or the sinusoidal encoding of i."""
    init_scale: Positive = 1.0
    """Initial weights are Xavier-normal times this."""
    initial_scale: Positive = 0.02
    """Standard deviation of the initial p(0)."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Recurrent:
        return Recurrent(self, sites, dim)


class Recurrent(Encoder):
    """p_{i+1} = layer(z_i, p_i) with layer(z, p) = tanh(W·[z; p] + b), and a learned p_0 per site.

    All sites share the layers: one layer with scalar input and 512 dimensions has 263,168
    parameters, two have twice as many. As the paper does, `cell_parameters` leaves out p_0.
    """

    frequencies: Tensor

    def __init__(self, config: RecurrentConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        width = 1 if config.input == "scalar" else dim
        self.cells = nn.ModuleList(nn.Linear(width + dim, dim) for _ in range(config.layers))
        self.initial = nn.Parameter(torch.empty(sites, dim))
        self.register_buffer(
            "frequencies", sinusoid_frequencies(dim).to(torch.get_default_dtype()), persistent=False
        )
        # the weights of the last call without gradients, and the states they gave
        self._cache: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.initial, std=self.config.initial_scale)
        for layer in self.cells:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight, gain=self.config.init_scale)
            nn.init.zeros_(layer.bias)

    def cell_parameters(self) -> int:
        """Return the number of parameters of the layers, without the starting points."""
        return sum(parameter.numel() for parameter in self.cells.parameters())

    def forward(self, times: Tensor) -> Tensor:
        index = to_index(times, self.delta, "recurrent").to(self.initial.device)
        if int(index.max()) >= _LONGEST:
            raise LengthError(
                f"The recurrent encoder steps through all positions, at most {_LONGEST:,}, but "
                f"position {int(index.max()):,} was requested; use an encoder that evaluates "
                "single times: FlowConfig(), SinusoidalConfig()."
            )
        count = int(index.max()) + 1
        self.check_length(count)
        learning = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in self.parameters()
        )
        if learning or torch.compiler.is_compiling():
            return torch.stack(self._continued([self.initial], count))[index]
        with torch.inference_mode(False), torch.no_grad():  # training may use the cache later
            return torch.stack(self._cached(count))[index]

    def _cached(self, count: int) -> list[Tensor]:
        """Return `count` states, reusing those computed earlier with the same weights."""
        weights, states = self._cache
        current = [parameter.detach() for parameter in self.parameters()]
        if len(weights) != len(current) or not all(map(_equal, weights, current)):
            weights = [weight.clone() for weight in current]
            states = [self.initial.detach().clone()]
        states = self._continued(states, count)
        self._cache = (weights, states)
        return states[:count]

    def _continued(self, states: list[Tensor], count: int) -> list[Tensor]:
        """Return at least `count` states from position 0 on, given the first ones."""
        states = list(states)
        while len(states) < count:
            states.append(self._step(len(states) - 1, states[-1]))
        return states

    def __getstate__(self) -> dict[str, Any]:
        """Leave cached states out of copies and pickles."""
        return {**self.__dict__, "_cache": ([], [])}

    def _step(self, position: int, state: Tensor) -> Tensor:
        if self.config.input == "scalar":
            seen = state.new_full((1,), position * self.delta)
        else:
            phase = position * self.frequencies
            even = torch.arange(self.dim, device=phase.device) % 2 == 0
            seen = torch.where(even, phase.sin(), phase.cos()).to(state.dtype)
        seen = seen.expand(self.sites, -1)
        for layer in self.cells:
            state = torch.tanh(layer(torch.cat((seen, state), -1)))
        return state


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
