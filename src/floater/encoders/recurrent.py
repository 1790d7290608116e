"""The paper's alternative to an ODE: a recurrent network that steps from position to position
(Table 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..dynamics import sinusoid_frequencies
from ..errors import LengthError
from .base import Encoder, EncoderConfig, Positive, to_index

_LONGEST = 200_000
"""Positions; a step takes some ten microseconds and one row of memory."""


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
    """p_{i+1} = layer(z_i, p_i), layer(z, p) = tanh(W·[z; p] + b), from a learned p_0 for each
    site.

    The layers are shared by all sites: 263,168 parameters for one layer with scalar input at 512
    dimensions, twice that for two. `cell_parameters` counts them as the paper does, without p_0.
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
        self._kept: tuple[list[Tensor], list[Tensor]] = (
            [],
            [],
        )  # weights, and the states they gave
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
        if int(index.max()) >= _LONGEST:
            raise LengthError(
                f"The recurrent encoder steps through all positions, at most {_LONGEST:,}, but "
                f"position {int(index.max()):,} was asked for; use an encoder that evaluates "
                "single times: FlowConfig(), SinusoidalConfig()."
            )
        self.check_length(int(index.max()) + 1)
        learning = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in self.parameters()
        )
        if learning or torch.compiler.is_compiling():
            return torch.stack(self._walk([self.initial], int(index.max()) + 1))[index]
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve training too
            return torch.stack(self._known(int(index.max()) + 1))[index]

    def _known(self, count: int) -> list[Tensor]:
        """The states that were found earlier with the same weights, bit for bit, and as many more
        as are asked for.
        """
        weights, states = self._kept
        now = [parameter.detach() for parameter in self.parameters()]
        if len(weights) != len(now) or not all(map(_equal, weights, now)):
            weights, states = [weight.clone() for weight in now], [self.initial.detach().clone()]
        states = self._walk(states, count)
        self._kept = (weights, states)
        return states[:count]

    def _walk(self, states: list[Tensor], count: int) -> list[Tensor]:
        """States of positions 0, 1, …, at least `count` of them, given the first ones."""
        found = list(states)
        while len(found) < count:
            found.append(self._step(len(found) - 1, found[-1]))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the known states behind."""
        return {**self.__dict__, "_kept": ([], [])}

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


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
