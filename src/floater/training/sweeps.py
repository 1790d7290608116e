"""Accumulated micro-batches with one reverse sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..encoders import Flow


def flows_of(model: nn.Module) -> list[Flow]:
    """Return all flows of a model."""
    return [module for module in model.modules() if isinstance(module, Flow)]


@contextmanager
def one_sweep(model: nn.Module) -> Iterator[None]:
    """Let the backward passes inside share one reverse sweep of each flow of a model.

    A backward pass through a flow needs a sweep over the steps of its solution. Inside, backward
    passes only add up what the sweep starts from; it runs once, at the end, and adds to the
    gradients of the flow, which equal those of one sweep for each pass up to rounding::

        with one_sweep(model):
            for batch in micro_batches:
                model(**batch).loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    If something is raised inside, no sweep runs. Distributed training that averages gradients in
    hooks would average before the sweep, so that flows of several processes must not use this.

    Args:
        model: the model, or any module with flows.
    """
    flows = flows_of(model)
    for flow in flows:
        flow.collect_cotangents()
    try:
        yield
    except BaseException:
        for flow in flows:
            flow.discard_cotangents()
        raise
    for flow in flows:
        flow.sweep_cotangents()
