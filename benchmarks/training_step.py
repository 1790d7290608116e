"""One training step of a model, and what of it the solver takes; used by training.py."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

import floater
from floater.encoders import Flow
from floater.training import one_sweep, parameter_groups
from paper_flow import PaperFlow, solve_as_the_paper
from peers import SETTINGS, Peer
from step_models import STRETCH, VARIANTS, Batch, Shape, build

RATE = 1e-5
BASE, CONTROL = "untouched", "untouched-again"
PAPER, CACHED = "paper", "paper-cached"


def variant(name: str, shape: Shape) -> nn.Module:
    """Return the model of a variant."""
    if name in SETTINGS:
        return Peer(name, shape)
    model = build(shape)
    VARIANTS["flow" if name == PAPER else name](model, shape)
    if name == PAPER:
        solve_as_the_paper(model)
    return model


class TrainingStep:
    """A model and its optimiser, AdamW as transformers' Trainer sets it up by default.

    Attributes:
        flows: the flows of its attachment.
        evaluations: evaluations of h in each step so far; 0 for a step that solved nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model.train()
        groups = parameter_groups(model, lr=RATE, weight_decay=0.01, required=False)
        self._optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)
        attached = floater.attachment(model)
        encoders = () if attached is None else attached.encoders.values()
        self.flows = [encoder for encoder in encoders if isinstance(encoder, Flow | PaperFlow)]
        self.evaluations: list[int] = []

    def __call__(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of one optimiser step on these micro-batches."""
        return sum(self.parts(batches))

    def parts(self, batches: Sequence[Batch]) -> Iterator[float]:
        """Take one optimiser step in parts, and yield the seconds of each: forward and backward of
        every micro-batch but the last; those of the last with the step itself.
        """
        solves = self._solves()
        begun = time.perf_counter()
        with one_sweep(self._model) if len(batches) > 1 else nullcontext():
            for number, batch in enumerate(batches):
                if number:
                    yield time.perf_counter() - begun
                    begun = time.perf_counter()
                loss = self._model(**batch).loss / len(batches)
                loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        yield time.perf_counter() - begun
        solved = self._solves() != solves or any(isinstance(f, PaperFlow) for f in self.flows)
        self.evaluations.append(sum(flow.evaluations for flow in self.flows) if solved else 0)

    def _solves(self) -> int:
        return sum(flow.solves for flow in self.flows if isinstance(flow, Flow))


class StepAndSolver:
    """A training step; after each, unless it has no flow, the solver's part is timed alone.

    That is the solve and one reverse sweep, in a copy of the flow with the weights of the moment:
    for a table of the longest row, or with jitter for the polynomials up to the longest time that
    may occur.

    Attributes:
        step: the step.
        solver: seconds of the solver, for each step.
    """

    def __init__(self, model: nn.Module) -> None:
        self.step = TrainingStep(model)
        self.solver: list[float] = []
        attached = floater.attachment(model)
        self._jitter = attached is not None and attached.jitter is not None
        self._copies = [copy.deepcopy(flow) for flow in self.step.flows if isinstance(flow, Flow)]

    def parts(self, batches: Sequence[Batch]) -> Iterator[float]:
        """Take the step in parts, and yield the seconds of each; then time the solver."""
        yield from self.step.parts(batches)
        for flow, twin in zip(self.step.flows, self._copies, strict=True):
            twin.load_state_dict(flow.state_dict())
        if self._copies:
            self.solver.append(sum(self._alone(flow, batches) for flow in self._copies))

    def _alone(self, flow: Flow, batches: Sequence[Batch]) -> float:
        weights = [parameter for parameter in flow.parameters() if parameter.requires_grad]
        begun = time.perf_counter()
        states = self._encodings(flow, max(batch["input_ids"].shape[1] for batch in batches))
        seconds = time.perf_counter() - begun
        if weights:
            cotangent = torch.randn_like(states)
            begun = time.perf_counter()
            torch.autograd.grad(states, weights, cotangent)
            seconds += time.perf_counter() - begun
        return seconds

    def _encodings(self, flow: Flow, length: int) -> Tensor:
        if not self._jitter:
            return flow.table(length)
        pieces = flow.pieces(STRETCH * length * flow.delta)
        assert pieces is not None
        return pieces.coefficients
