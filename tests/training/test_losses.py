from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from floater.training.losses import linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 255, 700])
def test_it_is_cross_entropy_with_its_gradients(rows: int, smoothing: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, rows, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 50, (2, rows))
    labels[0, : rows // 2] = -100
    ours = 1.7 * linear_cross_entropy(hidden, weight, labels, smoothing)
    theirs = 1.7 * F.cross_entropy(
        (hidden @ weight.t()).flatten(0, 1),
        labels.flatten(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert torch.allclose(ours, theirs)
    for one, other in zip(
        *(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, theirs)), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-10)


def test_frozen_weights_and_no_labels() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4)
    linear_cross_entropy(hidden, weight, torch.tensor([1, 2, -100])).backward()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad[2], torch.zeros(4))
    assert float(linear_cross_entropy(hidden.detach(), weight, torch.full((3,), -100))) == 0


def test_bf16_states_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 8), torch.randn(40, 8)
    labels = torch.randint(0, 40, (300,))
    narrow = hidden.bfloat16().requires_grad_()
    loss = linear_cross_entropy(narrow, weight, labels)
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, linear_cross_entropy(narrow.detach().float(), weight, labels))
    loss.backward()
    assert narrow.grad is not None
    assert narrow.grad.dtype == torch.bfloat16
