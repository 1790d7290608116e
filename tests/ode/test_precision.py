"""Autocast, half precision and compiled code around the solver."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import floater
from floater import LinearDynamics, MLPDynamics
from floater.ode import Gradient

from .systems import Damped

TIMES = 0.1 * torch.arange(40, dtype=torch.float64)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
@pytest.mark.parametrize("make", [MLPDynamics, LinearDynamics, Damped])
def test_autocast_changes_nothing(make: type[MLPDynamics], gradient: Gradient) -> None:
    dynamics, p = make(8), torch.randn(3, 8, requires_grad=True)
    inputs = [p, *dynamics.parameters()]
    expected = floater.solve(dynamics, p, TIMES, gradient=gradient)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = floater.solve(dynamics, p, TIMES, gradient=gradient)
        path = floater.trajectory(dynamics, p, 2.0, gradient=gradient)
        kept = path(TIMES)
    # The hand-written sweeps look after themselves; plain backpropagation under autocast is advised
    # against by torch.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=gradient != "autograd"):
        computed_gradients = torch.autograd.grad(computed.square().sum(), inputs)
    assert computed.dtype == torch.float32
    assert torch.equal(computed, expected)
    assert torch.equal(kept, expected)
    for a, b in zip(
        computed_gradients, torch.autograd.grad(expected.square().sum(), inputs), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [MLPDynamics, Damped, LinearDynamics])
def test_half_precision_model(
    make: type[MLPDynamics], dtype: torch.dtype, gradient: Gradient
) -> None:
    """Stored in half, solved in float32: the result is that of the float32 model with the same
    weights, rounded.
    """
    dynamics = make(8).to(dtype)
    full = make(8)
    full.load_state_dict(dynamics.state_dict())
    p = torch.randn(3, 8).to(dtype).requires_grad_()
    states = floater.solve(dynamics, p, TIMES, gradient=gradient)
    assert states.dtype == dtype
    assert torch.isfinite(states).all()
    expected = floater.solve(full, p.detach().float(), TIMES, gradient=gradient)
    torch.testing.assert_close(states.float(), expected.to(dtype).float(), rtol=1e-2, atol=1e-2)
    states.float().sum().backward()
    expected.sum().backward()
    assert p.grad is not None
    assert p.grad.dtype == dtype
    for half, single in zip(dynamics.parameters(), full.parameters(), strict=True):
        assert half.grad is not None
        assert half.grad.dtype == dtype
        assert single.grad is not None
        assert float((half.grad.float() - single.grad).norm() / single.grad.norm()) < 2e-2


class Model(nn.Module):
    """Adds positions to what it is given, as a model would."""

    def __init__(self, gradient: Gradient) -> None:
        super().__init__()
        self.dynamics, self.p, self.gradient = (
            MLPDynamics(8),
            nn.Parameter(torch.randn(3, 8)),
            gradient,
        )

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        states = floater.solve(self.dynamics, self.p * 2, times, gradient=self.gradient)
        return torch.tanh(x + states) * 3


# torch's own tracer reads .grad of every tensor that enters a graph after a break, and warns about
# what it reads.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_inside_a_compiled_model(gradient: Gradient) -> None:
    model = Model(gradient)
    x = torch.randn(40, 3, 8)
    expected = model(x, TIMES)
    expected_gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    torch.compiler.reset()
    computed = torch.compile(model, backend="aot_eager")(x, TIMES)
    computed_gradients = torch.autograd.grad(computed.square().sum(), list(model.parameters()))
    torch.testing.assert_close(computed, expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(computed_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
