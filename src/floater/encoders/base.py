"""The two contracts: encodings that are added, and transforms of queries and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ..config import Config
from ..errors import ArgumentError, LengthError, TimesError
from ..room import check_memory
from ..times import DELTA, check_times, uniform

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

_ON_GRID = 1e-6  # how far t/Δ may lie from a whole number, relative to Δ


class EncoderConfig(Config, ABC):
    """Settings of an encoder."""

    delta: Positive = DELTA
    """Δ, the time between two neighbouring tokens."""

    @abstractmethod
    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> nn.Module:
        """The encoder for so many sites; `blocks` numbers the block of each site, from 1."""


class Encoder(nn.Module, ABC):
    """Additive encoder: times → table [*times.shape, sites, dim].

    Attributes:
        sites: number of places in a model that take an encoding of their own.
        dim: size of an encoding.
        delta: Δ, the time between two neighbouring tokens.
    """

    def __init__(self, sites: int, dim: int, delta: float) -> None:
        super().__init__()
        for name, value in (("sites", sites), ("dim", dim)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"`{name}` must be a positive whole number, but is {value!r}.")
        self.sites, self.dim, self.delta = sites, dim, delta

    @abstractmethod
    def forward(self, times: Tensor) -> Tensor:
        """Encodings [*times.shape, sites, dim] at `times` ≥ 0, of any shape and order."""

    def table(self, length: int) -> Tensor:
        """Encodings [length, sites, dim] of positions 0 … length-1."""
        if isinstance(length, int):
            self.check_length(length)
        encodings: Tensor = self(uniform(length, self.delta))
        return encodings

    def check_length(self, length: int) -> None:
        """Refuse a table that this machine has no memory for."""
        check_memory(
            length * self.sites * self.dim * 4,
            f"A table of {length:,} positions, {self.sites} sites and {self.dim} dimensions",
            "ask for fewer positions, or for single times",
            0.5,
            LengthError,
        )

    def num_parameters(self) -> int:
        """Number of parameters that training may change."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        return f"sites={self.sites}, dim={self.dim}, delta={self.delta:g}"


def to_index(times: Tensor, delta: float, kind: str) -> Tensor:
    """Whole-numbered positions t/Δ, for encoders that know nothing in between."""
    exact = check_times(times) / delta
    index = exact.round()
    off = (exact - index).abs() > _ON_GRID * exact.abs().clamp(min=1.0)
    if bool(off.any()):
        raise TimesError(
            f"`times` must be multiples of Δ = {delta:g} for the {kind} encoder, but contain "
            f"{exact[off][0].item() * delta:g}; only flow, sinusoidal and rotary encoders serve "
            "times in between."
        )
    return index.to(torch.int64)
