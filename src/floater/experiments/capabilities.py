"""Table 1 of the paper: what each encoding can do, measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..encoders import (
    Encoder,
    EncoderConfig,
    FlowConfig,
    LearnedConfig,
    NoPositionConfig,
    RecurrentConfig,
    Relative,
    RelativeConfig,
    SinusoidalConfig,
)
from ..errors import ArgumentError, LengthError
from ..runs.results import Cell, Results, Table
from .base import Item, ReproductionRequest
from .parameter_counts import shared_parameters

TRAINED_LENGTH = 64
HEADS = 8
"""Relative positions have the size of a head; Transformer-base has 8 heads."""
TABLE_1 = {
    "Sinusoidal": "yes, no, yes",
    "Learned table": "no, yes, no",
    "Relative": "no, yes, yes",
    "FLOATER (flow)": "yes, yes, yes",
}
"""The rows of Table 1 of the paper that are measured here."""


@dataclass(frozen=True)
class Capability:
    """One row: an encoder and the outcome of its checks."""

    name: str
    inductive: bool
    data_driven: bool
    parameter_efficient: bool
    parameters: int
    shared_parameters: int
    """Without the initial values p(0), as the paper counts."""


def candidates(length: int) -> dict[str, EncoderConfig]:
    """The encoders of the table, each configured for training on sequences of `length`."""
    return {
        "Sinusoidal": SinusoidalConfig(),
        "Sinusoidal + block": SinusoidalConfig(block_term=True),
        "Learned table": LearnedConfig(max_length=length),
        "Relative": RelativeConfig(),
        "RNN, 1 layer, scalar": RecurrentConfig(),
        "RNN, 2 layers, scalar": RecurrentConfig(layers=2),
        "RNN, 1 layer, vector": RecurrentConfig(input="vector"),
        "RNN, 2 layers, vector": RecurrentConfig(layers=2, input="vector"),
        "No position": NoPositionConfig(),
        "FLOATER (flow)": FlowConfig(pace="free", zero_init=False, initial_scale=0.02),
    }


def capabilities(sites: int = 6, dim: int = 512, length: int = TRAINED_LENGTH) -> list[Capability]:
    """Run the checks for every encoder.

    Args:
        sites: number of sites; a Transformer-base encoder has 6.
        dim: size of an encoding.
        length: length that each encoder is configured for; the checks use twice that length.
    """
    return [check(name, sites, dim, length) for name in candidates(length)]


def check(name: str, sites: int, dim: int, length: int) -> Capability:
    """Run the checks for one of the :func:`candidates`."""
    encoder = _build(candidates(length)[name], sites, dim)
    larger = _build(candidates(2 * length)[name], sites, dim)
    return Capability(
        name=name,
        inductive=_covers(encoder, 2 * length),
        data_driven=_learns(encoder, length),
        parameter_efficient=_count(larger) == _count(encoder),
        parameters=_count(encoder),
        shared_parameters=shared_parameters(encoder),
    )


def _build(config: EncoderConfig, sites: int, dim: int) -> nn.Module:
    return config.build(sites, dim // HEADS if isinstance(config, RelativeConfig) else dim)


def _count(encoder: nn.Module) -> int:
    return sum(parameter.numel() for parameter in encoder.parameters())


def _outputs(encoder: nn.Module, length: int) -> Tensor:
    """What an encoder gives at each site: encodings of `length` positions, or self-attention over
    as many tokens.
    """
    if isinstance(encoder, Relative):
        query, key, value = torch.randn(3, 1, 1, length, encoder.dim)
        return torch.stack([encoder(site, query, key, value) for site in range(encoder.sites)])
    assert isinstance(encoder, Encoder)
    return encoder.table(length)


@torch.no_grad()
def _covers(encoder: nn.Module, length: int) -> bool:
    """Whether the outputs for `length` positions exist and are finite."""
    try:
        return bool(torch.isfinite(_outputs(encoder, length)).all())
    except LengthError:
        return False


def _learns(encoder: nn.Module, length: int) -> bool:
    """Whether there are parameters, and all of them receive a gradient that is not zero."""
    parameters = list(encoder.parameters())
    if not parameters:
        return False
    outputs = _outputs(encoder, length)
    gradients = torch.autograd.grad(
        (outputs * torch.randn_like(outputs)).sum(), parameters, allow_unused=True
    )
    return all(gradient is not None and bool(gradient.any()) for gradient in gradients)


class Capabilities(Item):
    """Table 1, from checks of every encoder."""

    name = "capabilities"
    title = "What each encoding can do (Table 1)"

    def reproduce(self, request: ReproductionRequest) -> Results:
        if request.keys:
            raise ArgumentError(
                "`--variants` must be left out for capabilities, which checks all encoders, but is "
                f"{','.join(request.keys)}."
            )
        checks = capability_table(64 if request.scale == "smoke" else 512)
        all_three = [str(name) for name, *cells in checks.rows if cells[:3] == ["yes"] * 3]
        return Results(
            item=self.name,
            scale=request.scale,
            title=f"{self.title}, scale {request.scale}",
            tables=[checks],
            summary=[f"Inductive, data-driven and parameter-efficient: {', '.join(all_three)}."],
        )


def capability_table(dim: int, length: int = TRAINED_LENGTH) -> Table:
    """Table 1 for encodings of a given size."""
    mark = {True: "yes", False: "no"}
    rows: list[list[Cell]] = [
        [
            row.name,
            mark[row.inductive],
            mark[row.data_driven],
            mark[row.parameter_efficient],
            row.parameters,
            row.shared_parameters,
            TABLE_1.get(row.name, "–"),
        ]
        for row in capabilities(6, dim, length)
    ]
    return Table(
        title="What each encoding can do",
        note=(
            f"6 sites of {dim} dimensions. Inductive: covers twice {length} positions; "
            "data-driven: every parameter receives a gradient; parameter-efficient: no more "
            "parameters for twice the length; of the dynamics: without the initial values p(0). "
            f"Relative positions have {HEADS} heads and K = {RelativeConfig().distance}; they "
            "cover any length, but all distances past K share a vector, and the paper does not "
            "count them as inductive."
        ),
        columns=[
            "encoding",
            "inductive",
            "data-driven",
            "parameter-efficient",
            "parameters",
            "of the dynamics",
            "paper",
        ],
        rows=rows,
    )
