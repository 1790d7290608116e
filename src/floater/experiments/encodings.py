"""A first look at the encodings: solve a Transformer-base, and tour what each encoder gives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..encoders import Encoder, Flow, FlowConfig
from .capabilities import Capability, candidates, check

TRAJECTORIES = 18  # q, k and v of the six blocks of an encoder


@dataclass(frozen=True)
class Solved:
    """What one solve of a Transformer-base cost and gave."""

    steps: int
    evaluations: int
    forward_ms: float
    backward_ms: float
    repeats: int
    largest: float
    more_evaluations: int
    prefix_equal: bool


def solve_transformer_base(length: int, dim: int, seed: int, repeats: int = 7) -> Solved:
    """Solve 18 trajectories for `length` positions, forward and backward, and then for twice as many."""
    config = FlowConfig(zero_init=False, initial_scale=0.02)
    forward, backward = [], []
    for _ in range(repeats):
        torch.manual_seed(seed)
        flow = config.build(TRAJECTORIES, dim)  # a new one, because an encoder solves only once
        begun = time.perf_counter()
        states = flow.table(length)
        done = time.perf_counter()
        torch.autograd.grad(states, list(flow.parameters()), torch.ones_like(states))
        forward.append(1e3 * (done - begun))
        backward.append(1e3 * (time.perf_counter() - done))
    steps, evaluations = flow.steps, flow.evaluations
    with torch.no_grad():
        longer = flow.table(2 * length)
        prefix_equal = torch.equal(longer[:length], states)
    return Solved(
        steps=steps,
        evaluations=evaluations,
        forward_ms=statistics.median(forward),
        backward_ms=statistics.median(backward),
        repeats=repeats,
        largest=float(states.detach().abs().max()),
        more_evaluations=flow.evaluations - evaluations,
        prefix_equal=prefix_equal,
    )


@dataclass(frozen=True)
class Stop:
    """One encoder of the tour."""

    capability: Capability
    encodings: NDArray[np.floating] | None
    """[position, dimension] at the first site; None where there is nothing to see."""


class Tour:
    """Every encoder in turn: its checks and its encodings of `length` positions."""

    def __init__(self, length: int, dim: int, sites: int) -> None:
        self._length, self._dim, self._sites = length, dim, sites
        self._configs = candidates(length)

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[Stop]:
        for name, config in self._configs.items():
            capability = check(name, self._sites, self._dim, self._length)
            encoder = config.build(self._sites, self._dim)
            if isinstance(encoder, Flow):  # larger weights than a careful start has, to show what h can do
                wild = FlowConfig(zero_init=False, init_scale=1.0, initial_scale=1.0, horizon=10.0)
                encoder = wild.build(self._sites, self._dim)
            assert isinstance(encoder, Encoder)
            with torch.no_grad():
                table = encoder.table(self._length)[:, 0].numpy()
            yield Stop(capability, table if table.any() else None)


def tour(length: int, dim: int, seed: int, sites: int = 6) -> Tour:
    """The encoders of Table 1, ready to be walked through."""
    torch.manual_seed(seed)
    return Tour(length, dim, sites)
