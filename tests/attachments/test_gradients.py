"""Gradients of attached models: complete, exact, and cheap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import floater
from floater.errors import (
    AttachmentError,
)
from floater.ode import discrete

from .attach_models import MOVING, batch, logits, make


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_the_backward_copies_no_gradients_of_projections(name: str) -> None:
    model = make(name).train()
    floater.attach(model, MOVING)
    todo, seen = [logits(model, batch(name)).grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    names = {node.name() for node in seen}
    assert any(name.startswith("Addmm") for name in names)
    assert not any("CopySlices" in name for name in names)  # of what is written into a view


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "vit", "distilbert"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = make(name).double().train()
    attached = floater.attach(model, MOVING)
    first, second = batch(name, length=11), batch(name, rows=2, length=7)
    inputs = [
        {k: v.double() if v.is_floating_point() else v for k, v in part.items()}
        for part in (first, second)
    ]

    def gradients() -> list[Tensor]:
        model.zero_grad()
        outs = [logits(model, part) for part in inputs]  # two forwards, then one backward
        torch.autograd.backward([out.square().mean() for out in outs])
        return [
            parameter.grad.clone()
            for parameter in attached.parameters()
            if parameter.grad is not None
        ]

    plain = gradients()
    model.gradient_checkpointing_enable()
    again = gradients()
    assert len(plain) == len(again) == 5
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(
        AttachmentError, match="Re-entrant gradient checkpointing loses the gradient"
    ):
        gradients()


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_one_solve_and_one_sweep_a_micro_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = 0
    original = discrete.reverse_sweep

    def counted(*args: Any) -> Any:
        nonlocal sweeps
        sweeps += 1
        return original(*args)

    monkeypatch.setattr(discrete, "reverse_sweep", counted)
    model = make(name).train()
    attached = floater.attach(model, MOVING)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    flow: Any = attached.encoder
    for step in range(2):
        for _ in range(8):
            logits(model, batch(name)).square().mean().backward()
        assert (flow.solves, sweeps) == (step + 1, 8 * (step + 1))
        optimiser.step()
        optimiser.zero_grad()
    attached.bake(20)
    before = flow.solves
    with torch.no_grad():
        logits(model, batch(name))
    assert flow.solves == before


def test_gradient_reaches_every_parameter_of_the_attachment() -> None:
    model = make("marian").train()
    attached = floater.attach(model, MOVING)
    logits(model, batch("marian")).square().mean().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in attached.parameters()
    )
    flow: Any = attached.encoder
    assert bool((flow.initial.grad.abs().sum(1) > 0).all())  # every site has a say
