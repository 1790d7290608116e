"""Accumulated micro-batches with one reverse sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from ..encoders import Flow
from ..encoders.sweeps import PendingSweeps


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

    Passes through the flow must be complete ones: `torch.autograd.grad` and `backward(inputs=…)`
    inside find no gradient of its weights. If something is raised inside, no sweep runs. A block
    inside another one does nothing. Distributed training that averages gradients in hooks would
    average before the sweep, so that several processes must not use this.

    Args:
        model: the model, or any module with flows.
    """
    flows = [flow for flow in flows_of(model) if flow.collect_cotangents()]
    try:
        yield
    except BaseException:
        stop(flows)
        raise
    sweep(flows)


def sweep(flows: Iterable[Flow]) -> None:
    """End collecting with one reverse sweep for each flow."""
    for pending in stop(flows):
        pending.sweep()


def stop(flows: Iterable[Flow]) -> list[PendingSweeps]:
    """End collecting without a sweep, and return what waits for one."""
    return [pending for flow in flows if (pending := flow.stop_collecting()) is not None]
