"""The paper's alternative to an ODE: a recurrent network that steps from position to position (Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..dynamics import sinusoid_frequencies
from .base import Encoder, EncoderConfig, Positive, to_index


class RecurrentConfig(EncoderConfig):
    """Settings of :class:`Recurrent`."""

    layers: Annotated[int, Field(ge=1, le=2)] = 1
    """Layers a step goes through, each of which sees the input."""
    input: Literal["scalar", "vector"] = "scalar"
    """What a layer sees of the position: the time t = i·Δ, or the sinusoidal encoding of i."""
    init_scale: Positive = 1.0
    """Initial weights are Xavier-normal times this."""
    initial_scale: Positive = 0.02
    """Standard deviation of the initial p(0)."""

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> Recurrent:
        return Recurrent(self, sites, dim)


class Recurrent(Encoder):
    """p_{i+1} = layer(z_i, p_i), layer(z, p) = tanh(W·[z; p] + b), from a learned p_0 for each site.

    The layers are shared by all sites: 263,168 parameters for one layer with scalar input at 512 dimensions, twice
    that for two. `cell_parameters` counts them as the paper does, without p_0.
    """

    frequencies: Tensor

    def __init__(self, config: RecurrentConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        self.config = config
        width = 1 if config.input == "scalar" else dim
        self.cells = nn.ModuleList(nn.Linear(width + dim, dim) for _ in range(config.layers))
        self.initial = nn.Parameter(torch.empty(sites, dim))
        self.register_buffer("frequencies", sinusoid_frequencies(dim).to(torch.get_default_dtype()), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial weights anew."""
        nn.init.normal_(self.initial, std=self.config.initial_scale)
        for layer in self.cells:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight, gain=self.config.init_scale)
            nn.init.zeros_(layer.bias)

    def cell_parameters(self) -> int:
        """Parameters of the layers alone."""
        return sum(parameter.numel() for parameter in self.cells.parameters())

    def forward(self, times: Tensor) -> Tensor:
        index = to_index(times, self.delta, "recurrent").to(self.initial.device)
        state: Tensor = self.initial
        states = [state]
        for i in range(int(index.max())):
            state = self._step(i, state)
            states.append(state)
        return torch.stack(states)[index]

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
