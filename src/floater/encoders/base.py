"""The base classes of encoders and of their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..config import Config, Positive
from ..errors import ArgumentError, LengthError, TimesError
from ..ode import Pieces
from ..room import check_memory
from ..times import DELTA, check_times, nearest_positions, uniform


class EncoderConfig(Config, ABC):
    """Settings of an encoder."""

    delta: Positive = DELTA
    """Δ, the time between two neighbouring tokens."""

    @abstractmethod
    def build(self, sites: int, dim: int, blocks: Sequence[int] | None = None) -> nn.Module:
        """Build the encoder.

        Args:
            sites: number of places in a model that take an encoding of their own.
            dim: size of an encoding.
            blocks: number of the block that each site belongs to, from 1.
        """

    def fitted(self, positions: int | None) -> EncoderConfig:
        """Return these settings with what a model determines written out.

        Args:
            positions: largest number of positions of the model; None if it has no limit.
        """
        return self


class Encoder(nn.Module, ABC):
    """An additive encoder: maps times to encodings [*times.shape, sites, dim].

    Attributes:
        sites: number of places in a model that take an encoding of their own.
        dim: size of an encoding.
        delta: Δ, the time between two neighbouring tokens.
    """

    def __init__(self, sites: int, dim: int, delta: float) -> None:
        super().__init__()
        for name, value in (("sites", sites), ("dim", dim)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"`{name}` must be a positive integer, but is {value!r}.")
        self.sites, self.dim, self.delta = sites, dim, delta

    @abstractmethod
    def forward(self, times: Tensor) -> Tensor:
        """Return encodings [*times.shape, sites, dim] at `times` ≥ 0, of any shape and order."""

    def table(self, length: int) -> Tensor:
        """Return encodings [length, sites, dim] of positions 0 … length-1."""
        if isinstance(length, int):
            self.check_length(length)
        encodings: Tensor = self(uniform(length, self.delta))
        return encodings

    def pieces(self, end: float) -> Pieces | None:
        """Return the encodings up to a time as polynomials, [steps, degree + 1, sites, dim], for
        encoders that have them; they serve many single times at once.
        """
        return None

    def check_length(self, length: int) -> None:
        """Raise if this machine does not have enough memory for a table of this length."""
        if torch.compiler.is_compiling():  # a length may be a symbol, which has no value yet
            return
        check_memory(
            length * self.sites * self.dim * 4,
            f"A table of {length:,} positions, {self.sites} sites and {self.dim} dimensions",
            "request fewer positions, or single times",
            0.5,
            LengthError,
        )

    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        return f"sites={self.sites}, dim={self.dim}, delta={self.delta:g}"


def to_index(times: Tensor, delta: float, kind: str) -> Tensor:
    """Return the integer positions t/Δ, for encoders that are defined only there."""
    checked = check_times(times)
    if checked.requires_grad:
        raise TimesError(
            f"`times` must not require gradients for the {kind} encoder, which is defined at "
            "multiples of Δ only, but do; only flow, sinusoidal, fourier and rotary encoders have "
            "gradients in the times."
        )
    index, off_grid = nearest_positions(checked, delta)
    if bool(off_grid.any()):
        raise TimesError(
            f"`times` must be multiples of Δ = {delta:g} for the {kind} encoder, but contain "
            f"{checked[off_grid][0].item():g}; only flow, sinusoidal, fourier and rotary "
            "encoders support times in between."
        )
    return index
