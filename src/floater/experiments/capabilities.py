"""Table 1 of the paper: what each encoding can do, measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..encoders import (
    Encoder,
    EncoderConfig,
    FlowConfig,
    LearnedConfig,
    NoPositionConfig,
    RecurrentConfig,
    SinusoidalConfig,
)
from ..errors import ArgumentError, LengthError
from ..runs.results import Cell, Results, Table
from .base import Item, ReproductionRequest
from .parameter_counts import shared_parameters

TRAINED_LENGTH = 64
TABLE_1 = {
    "Sinusoidal": "yes, no, yes",
    "Learned table": "no, yes, no",
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
        "RNN, 1 layer, scalar": RecurrentConfig(),
        "RNN, 2 layers, scalar": RecurrentConfig(layers=2),
        "RNN, 1 layer, vector": RecurrentConfig(input="vector"),
        "RNN, 2 layers, vector": RecurrentConfig(layers=2, input="vector"),
        "No position": NoPositionConfig(),
        "FLOATER (flow)": FlowConfig(zero_init=False, initial_scale=0.02),
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
        parameter_efficient=larger.num_parameters() == encoder.num_parameters(),
        parameters=encoder.num_parameters(),
        shared_parameters=shared_parameters(encoder),
    )


def _build(config: EncoderConfig, sites: int, dim: int) -> Encoder:
    encoder = config.build(sites, dim)
    assert isinstance(encoder, Encoder)
    return encoder


@torch.no_grad()
def _covers(encoder: Encoder, length: int) -> bool:
    """Whether all positions below `length` have a finite encoding."""
    try:
        return bool(torch.isfinite(encoder.table(length)).all())
    except LengthError:
        return False


def _learns(encoder: Encoder, length: int) -> bool:
    """Whether there are parameters, and all of them receive a gradient that is not zero."""
    parameters = list(encoder.parameters())
    if not parameters:
        return False
    table = encoder.table(length)
    gradients = torch.autograd.grad(
        (table * torch.randn_like(table)).sum(), parameters, allow_unused=True
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
            "parameters for twice the length; of the dynamics: without the initial values p(0)."
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
