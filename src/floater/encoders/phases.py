"""The phases of a rotary model as a flow: each frequency has a clock of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Positive, PositiveInt
from ..errors import ConfigError
from ..ode import Dopri5, Solver
from ..times import check_times
from .base import Encoder, EncoderConfig
from .flow import Flow

Scaling = Literal["none", "linear", "ntk", "yarn", "log"]
SCALINGS: tuple[Scaling, ...] = ("none", "linear", "ntk", "yarn", "log")
_SHIFT = math.log(math.e - 1)
"""softplus of this number is 1."""


class PhaseFlowConfig(EncoderConfig):
    """Settings of :class:`PhaseFlow`."""

    scaling: Scaling = "none"
    """Where the phases start: as the model has them, or at a known scaling for longer inputs."""
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """How many times as long as the model's inputs the longest ones are."""
    hidden: PositiveInt = 32
    """Width of the hidden layer."""
    learned: bool = True
    """Without it, the phases stay where they start."""
    exact: bool = False
    """Leave positions below `length` where they are, so that inputs of the model's own length have
    the same outputs, to the bit; the clocks change past it only. Needs scaling "none".
    """
    sensitivity: Positive = 4.0
    """A unit that the network adds to the slope of a fast frequency turns its phase by about so
    many radians within the model's length; slow frequencies turn less.
    """
    rtol: Positive = 1e-4
    """Allowed relative error of a step of the solver."""
    atol: Positive = 1e-5
    """Allowed absolute error of a step, in lengths of the model."""
    length: PositiveInt | None = None
    """Number of positions of the model. Default: that of the model it is attached to."""
    frequencies: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    """The model's frequencies, in radians per token. Default: those of the model it is attached to.
    """

    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> PhaseFlow:
        return PhaseFlow(self, sites, dim)

    def fitted(
        self, positions: int | None, frequencies: Sequence[float] | None = None
    ) -> PhaseFlowConfig:
        changes: dict[str, object] = {}
        if self.length is None:
            changes["length"] = positions
        if self.frequencies is None and frequencies is not None:
            changes["frequencies"] = tuple(frequencies)
        return self.model_copy(update=changes)


class PhaseFlow(Encoder):
    """What is added to the phases ω_k·i of a rotary model at position i = t/Δ.

    The clock c_k of a frequency starts at 0 and runs by dc_k/di = s_k(i)·softplus(g_k(i, c)), where
    s_k is the slope of a fixed scaling and g a small network, so every clock runs forward. The
    phase is ω_k·c_k(i), and its difference to ω_k·i is added. The last layer of g starts at zero;
    so the phases start as those of the scaling, and without one as the model's own, to the bit.

    Attributes:
        frequencies: ω, in radians per token. Not a buffer: a model that is converted to half
            precision must not round it.
        slopes: s, where it does not depend on the position.
        attention_scale: number by which cosine and sine are multiplied (YaRN), and with them q and
            k.
    """

    def __init__(self, config: PhaseFlowConfig, sites: int, dim: int) -> None:
        super().__init__(sites, dim, config.delta)
        if sites != 1:
            raise ConfigError(f"A model has one set of phases, but `sites` is {sites}.")
        if config.frequencies is None or config.length is None:
            raise ConfigError(
                "`frequencies` and `length` of a PhaseFlowConfig must be those of a rotary model, "
                "but are not set; attach it to one, or set both."
            )
        if len(config.frequencies) != dim:
            raise ConfigError(
                f"`frequencies` must have {dim} numbers, as many as the model rotates pairs of "
                f"dimensions, but have {len(config.frequencies)}."
            )
        if config.exact and config.scaling != "none":
            raise ConfigError(
                '`scaling` must be "none" with `exact`, which leaves the first positions as they '
                f"are, but is {config.scaling!r}."
            )
        self.config, self.length = config, config.length
        self.frequencies = _numbers(config.frequencies)
        self.slopes = _numbers(
            fixed_slopes(config.scaling, config.frequencies, config.factor, config.length)
        )
        self.attention_scale = (
            0.1 * math.log(config.factor) + 1 if config.scaling == "yarn" else 1.0
        )
        self.flow: _Clocks | None = None
        if config.learned:
            dynamics = ClockDynamics(config, self.frequencies, self.slopes)
            solver = Dopri5(rtol=config.rtol, atol=config.atol)
            self.flow = _Clocks(dynamics, delta=config.delta, solver=solver)

    def forward(self, times: Tensor) -> Tensor:
        checked = check_times(times)
        ahead = self.fixed_clocks(checked) - (checked / self.delta).unsqueeze(-1)
        encodings = (ahead * self.frequencies.to(ahead.device)).unsqueeze(-2)
        encodings = encodings.expand(*checked.shape, self.sites, self.dim)
        if self.flow is None:
            return encodings.float()
        begin = self.length * self.delta if self.config.exact else 0.0
        learned: Tensor = self.flow((checked - begin).clamp(min=0))
        turns = (self.length * self.frequencies).to(learned)
        return encodings.to(learned) + learned * turns

    def fixed_clocks(self, times: Tensor) -> Tensor:
        """Return the clocks [*times.shape, dim] of the fixed scaling, in tokens."""
        index = (times / self.delta).unsqueeze(-1)
        if self.config.scaling == "log":
            return (self.length * torch.log1p(index / self.length)).expand(
                *index.shape[:-1], self.dim
            )
        return index * self.slopes.to(index.device)

    @torch.no_grad()
    def clocks(self, length: int) -> Tensor:
        """Return the clocks [length, dim] of positions 0 … length-1, in tokens."""
        index = torch.arange(length, dtype=torch.float64).unsqueeze(-1)
        ahead = self.table(length)[:, 0].cpu().double()
        return index + ahead / self.frequencies.clamp(min=1e-300)


class ClockDynamics(nn.Module):
    """How fast the learned part of each clock runs, in lengths of the model.

    The network's outputs are scaled so that the same change of its weights turns the phases of all
    fast frequencies about equally far: fast clocks turn many radians within a length, and a small
    change of their slopes would drown all others.

    Args:
        config: its settings, with those of a model.
        frequencies: in radians per token.
        slopes: of the fixed scaling.
    """

    def __init__(self, config: PhaseFlowConfig, frequencies: Tensor, slopes: Tensor) -> None:
        super().__init__()
        assert config.length is not None
        self.dim, self._factor = len(frequencies), config.factor
        self._span = config.length * config.delta
        self._slopes = None if config.scaling == "log" else slopes
        self._begin = 1.0 if config.exact else 0.0  # where time starts, in lengths
        self._sensitivity = config.sensitivity / (config.sensitivity + frequencies * config.length)
        self.first = nn.Linear(self.dim + 1, config.hidden)
        self.second = nn.Linear(config.hidden, self.dim)
        self._spread()

    @torch.no_grad()
    def _spread(self) -> None:
        """Let the hidden units be steps at times all over the longest input."""
        count, like = len(self.first.bias), self.first.weight
        centres = (torch.arange(count, device=like.device) + 0.5) / count
        slopes = 4.0 * 4.0 ** torch.rand(count, device=like.device)
        nn.init.normal_(self.first.weight, std=0.1 / math.sqrt(self.dim))
        self.first.weight[:, -1] = slopes
        self.first.bias.copy_(-slopes * centres)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        """Return the slope of the clocks' learned part p [..., dim], per unit of time."""
        lengths = self._begin + torch.as_tensor(t, dtype=p.dtype, device=p.device) / self._span
        seen = (lengths / self._factor).expand(*p.shape[:-1], 1)
        inputs = torch.cat((p / self._factor, seen), -1)
        hidden = torch.tanh(F.linear(inputs, *_weights(self.first, p)))
        change = F.linear(hidden, *_weights(self.second, p)) * self._sensitivity.to(p)
        # the difference of two equal terms is exactly zero
        faster = F.softplus(change + _SHIFT) - F.softplus(torch.full_like(change, _SHIFT))
        slopes = 1 / (1 + lengths) if self._slopes is None else self._slopes.to(p)
        return slopes * faster / self._span


class _Clocks(Flow):
    """Clocks start at zero: a shift of all phases would change nothing. They are computed in
    float32 whatever the type of the model's weights.
    """

    def __init__(self, dynamics: ClockDynamics, *, delta: float, solver: Solver) -> None:
        super().__init__(dynamics, 1, delta=delta, solver=solver)
        zeros = torch.zeros_like(self.initial)
        del self.initial
        self.register_buffer("initial", zeros)

    def start(self) -> Tensor:
        half = self.initial.dtype in (torch.float16, torch.bfloat16)
        return self.initial.float() if half else self.initial


def _weights(layer: nn.Linear, like: Tensor) -> tuple[Tensor, Tensor]:
    return layer.weight.to(like.dtype), layer.bias.to(like.dtype)


def _numbers(values: Sequence[float]) -> Tensor:
    """Numbers that exist also while the sizes of an encoder are found without memory."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def fixed_slopes(
    scaling: Scaling, frequencies: Sequence[float], factor: float, length: int
) -> list[float]:
    """Return how fast each clock runs under a fixed scaling; 1 is as the model has it.

    Args:
        scaling: linear slows all clocks by the factor; ntk the slowest by the factor, the fastest
            not at all, and those in between by a power of it; yarn those that turn less than once
            within the model's length by the factor, and those that turn more than 32 times not at
            all.
        frequencies: in radians per token, from the fastest to the slowest.
        factor: how many times as long as the model's inputs the longest ones are.
        length: number of positions of the model.
    """
    last = max(len(frequencies) - 1, 1)
    if scaling == "linear":
        return [1 / factor] * len(frequencies)
    if scaling == "ntk":
        return [factor ** (-place / last) for place in range(len(frequencies))]
    if scaling == "yarn":
        first, end = _yarn_ramp(frequencies, length)
        shares = [
            min(max((place - first) / max(end - first, 1e-3), 0.0), 1.0)
            for place in range(len(frequencies))
        ]
        return [1 - share + share / factor for share in shares]
    return [1.0] * len(frequencies)


def _yarn_ramp(
    frequencies: Sequence[float], length: int, fast: float = 32.0, slow: float = 1.0
) -> tuple[int, int]:
    """The places of the frequencies between which YaRN's slopes fall: those that turn `fast` and
    `slow` times within the model's length.
    """
    logs = [math.log(max(frequency, 1e-300)) for frequency in frequencies]
    step = (logs[0] - logs[-1]) / max(len(logs) - 1, 1)

    def place(turns: float) -> float:
        target = math.log(2 * math.pi * turns / length)
        return (logs[0] - target) / step if step else 0.0

    return max(math.floor(place(fast)), 0), min(math.ceil(place(slow)), 2 * len(logs) - 1)
