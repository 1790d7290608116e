"""Dynamics: what they compute, their bounds and their initial weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from floater import LinearDynamics, MLPDynamics, SinusoidDynamics, ZeroDynamics
from floater.dynamics import ActivationName, sinusoid_frequencies
from floater.errors import ArgumentError
from floater.ode import ACTIVATIONS

ACTIVATION_NAMES: tuple[ActivationName, ...] = ("tanh", "relu", "silu", "gelu", "softplus")


def test_parameter_count() -> None:
    assert sum(parameter.numel() for parameter in MLPDynamics(512).parameters()) == 526_336
    assert (
        sum(parameter.numel() for parameter in MLPDynamics(6, 10).parameters())
        == 10 * 7 + 10 + 6 * 11 + 6
    )


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("horizon", [None, 2.0])
def test_forward_is_two_layers_that_see_the_time(
    activation: ActivationName, horizon: float | None
) -> None:
    dynamics = MLPDynamics(3, 5, activation=activation, horizon=horizon).double()
    nn.init.normal_(dynamics.first.bias)
    nn.init.normal_(dynamics.second.bias)
    functions = {
        "tanh": torch.tanh,
        "relu": torch.relu,
        "silu": nn.functional.silu,
        "gelu": nn.functional.gelu,
        "softplus": nn.functional.softplus,
    }
    p = torch.randn(2, 4, 3, dtype=torch.float64)
    t = 1.7
    seen = t if horizon is None else horizon * math.tanh(t / horizon)
    clock = torch.full((2, 4, 1), seen, dtype=torch.float64)
    hidden = functions[activation](dynamics.first(torch.cat((p, clock), -1)))
    expected = dynamics.second(torch.cat((hidden, clock), -1))
    torch.testing.assert_close(dynamics(t, p), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("horizon", [None, 2.0])
def test_the_fast_path_is_forward(horizon: float | None) -> None:
    """One Euler step moves p by the slope that forward gives."""
    dynamics = MLPDynamics(3, 5, horizon=horizon).double()
    nn.init.normal_(dynamics.first.bias)
    nn.init.normal_(dynamics.second.bias)
    p = torch.randn(2, 3, dtype=torch.float64)
    states = floater.solve(dynamics, p, torch.tensor([3.5]), solver=floater.Euler(0.5), start=3.0)
    torch.testing.assert_close(states[0], p + 0.5 * dynamics(3.0, p), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("time", [0.0, 0.3, 7.25, 1e4])
@pytest.mark.parametrize(
    "dynamics",
    [
        MLPDynamics(4),
        MLPDynamics(4, horizon=3.0),
        LinearDynamics(4),
        SinusoidDynamics(4),
        ZeroDynamics(4),
    ],
    ids=["mlp", "horizon", "linear", "sinusoid", "zero"],
)
def test_time_may_be_a_number_or_a_tensor(dynamics: nn.Module, time: float) -> None:
    p = torch.randn(2, 4, dtype=torch.float64)
    computed = dynamics.double()(torch.tensor(time, dtype=torch.float64), p)
    torch.testing.assert_close(computed, dynamics(time, p), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_derivatives_of_the_nonlinearities(activation: str) -> None:
    function = ACTIVATIONS[activation]
    x = torch.linspace(-30, 30, 4001, dtype=torch.float64)
    x = x[x != 0].requires_grad_()
    y = function.forward(x)
    (expected,) = torch.autograd.grad(y.sum(), x)
    computed = function.derivative((y if function.from_output else x).detach())
    torch.testing.assert_close(computed, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(function.apply_(x.detach().clone()), y.detach())
    assert float(y.detach().abs().max()) <= function.bound


def test_initial_weights_are_small_and_biases_zero() -> None:
    dynamics = MLPDynamics(256, init_scale=0.5)
    for layer in (dynamics.first, dynamics.second):
        spread = 0.5 * math.sqrt(2 / sum(layer.weight.shape))
        assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=0.02)
        assert torch.count_nonzero(layer.bias) == 0


def test_init_scale_zero_stands_still() -> None:
    assert all(
        torch.count_nonzero(parameter) == 0
        for parameter in MLPDynamics(3, init_scale=0.0).parameters()
    )


def test_zero_init_is_exactly_zero_and_gradients_reach_the_last_layer() -> None:
    dynamics = MLPDynamics(8, zero_init=True)
    p = torch.randn(3, 8)
    assert torch.equal(dynamics(4.2, p), torch.zeros(3, 8))
    states = floater.solve(dynamics, p, torch.arange(1.0, 6.0))
    assert torch.equal(states, p.expand(5, 3, 8))
    states.square().sum().backward()
    for parameter in dynamics.second.parameters():
        assert parameter.grad is not None
        assert torch.count_nonzero(parameter.grad) == parameter.numel()
    for parameter in dynamics.first.parameters():
        assert parameter.grad is not None
        assert torch.count_nonzero(parameter.grad) == 0


def test_zero_init_trains_the_first_layer_from_the_second_update_on() -> None:
    dynamics = MLPDynamics(8, zero_init=True)
    optimiser = torch.optim.SGD(dynamics.parameters(), lr=1e-3)
    p = torch.randn(3, 8)
    for _ in range(2):
        optimiser.zero_grad()
        floater.solve(dynamics, p, torch.arange(1.0, 6.0)).square().sum().backward()
        optimiser.step()
    assert dynamics.first.weight.grad is not None
    assert torch.count_nonzero(dynamics.first.weight.grad) > 0


def test_a_pull_brings_paths_to_rest_within_their_bounds() -> None:
    torch.manual_seed(0)
    initial = 3 * torch.randn(2, 6, dtype=torch.float64)
    pulled = MLPDynamics(6, init_scale=2.0, horizon=1.0, pull=4.0).double()
    free = MLPDynamics(6, init_scale=2.0, horizon=1.0).double()
    free.load_state_dict(pulled.state_dict())
    t = 0.3
    assert torch.allclose(pulled(t, initial), free(t, initial) - 4.0 * initial)
    assert pulled.field(initial) is None
    times = torch.arange(0, 60, 0.5, dtype=torch.float64)
    with torch.no_grad():
        path = floater.solve(pulled, initial, times)
        for time, state in zip(times.tolist(), path, strict=True):
            slope, size = pulled.bounds(initial, time)
            assert float(state.abs().max()) <= size + 1e-9
            assert float(pulled(time, state).abs().max()) <= slope + 1e-9
    assert pulled.bounds(initial, 1e6)[1] < 100
    assert float((path[-1] - path[-20]).abs().max()) < 1e-3  # this draw has a resting place
    with pytest.raises(ArgumentError, match="`pull` must be a finite number ≥ 0, but is -1"):
        MLPDynamics(6, pull=-1)


def test_bounds_hold() -> None:
    dynamics = MLPDynamics(16, horizon=5.0)
    nn.init.normal_(dynamics.first.bias)
    nn.init.normal_(dynamics.second.bias)
    p = torch.randn(4, 16)
    times = torch.linspace(0, 200, 400, dtype=torch.float64)
    with torch.no_grad():
        states = floater.solve(dynamics, p, times)
        for time, state in zip(times.tolist(), states, strict=True):
            slope, reach = dynamics.bounds(p, time)
            assert float(dynamics(time, state).abs().max()) <= slope
            assert float(state.abs().max()) <= reach


def test_bounds_are_attained() -> None:
    """A bound that is far too large would hold as well."""
    dynamics = MLPDynamics(2, 2, horizon=1.0).double()
    with torch.no_grad():
        dynamics.first.weight.zero_()
        dynamics.first.bias.fill_(40.0)
        dynamics.second.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]]))
        dynamics.second.bias.fill_(0.5)
    p = torch.tensor([0.25, 0.25], dtype=torch.float64)
    slope, reach = dynamics.bounds(p, 100.0)
    assert slope == pytest.approx(6.5)
    state = floater.solve(dynamics, p, torch.tensor([100.0]))
    assert float(state.detach().abs().max()) == pytest.approx(reach, rel=0.01)


def test_bounds_stay_with_a_horizon_and_grow_without() -> None:
    p = torch.zeros(8)
    bounded, free = MLPDynamics(8, horizon=5.0), MLPDynamics(8)
    assert bounded.bounds(p, 1e9)[0] == pytest.approx(bounded.bounds(p, 1e3)[0])
    assert free.bounds(p, 1e9)[0] > 1e5 * free.bounds(p, 1e3)[0]


def test_an_unbounded_nonlinearity_has_no_bound() -> None:
    for activation in ACTIVATION_NAMES[1:]:
        assert (
            MLPDynamics(8, activation=activation, horizon=5.0).bounds(torch.zeros(8), 1.0)[0]
            == math.inf
        )


def test_horizon_bounds_what_is_seen_of_the_time() -> None:
    dynamics = MLPDynamics(4, horizon=10.0)
    assert dynamics.view(0.01) == pytest.approx(0.01, rel=1e-6)
    assert dynamics.view(1e6) == 10.0
    assert MLPDynamics(4).view(1e6) == 1e6


@pytest.mark.parametrize("dim", [2, 5, 8])
def test_sinusoid_slope_is_the_derivative_of_the_encoding(dim: int) -> None:
    def encoding(t: Tensor) -> Tensor:
        j = torch.arange(dim)
        angle = 1e-4 ** ((j - j % 2).double() / dim) * t
        return torch.where(j % 2 == 0, torch.sin(angle), torch.cos(angle))

    dynamics = SinusoidDynamics(dim)
    torch.testing.assert_close(
        dynamics.initial().double(), encoding(torch.tensor(0.0, dtype=torch.float64))
    )
    for time in (0.0, 3.0, 1234.5):
        expected = torch.autograd.functional.jacobian(
            encoding, torch.tensor(time, dtype=torch.float64)
        )
        computed = dynamics(time, torch.zeros(3, dim, dtype=torch.float64))
        torch.testing.assert_close(computed, expected.expand(3, dim), rtol=1e-12, atol=1e-14)
    assert not list(dynamics.parameters())
    assert not dynamics.state_dict()


def test_sinusoid_frequencies() -> None:
    torch.testing.assert_close(
        sinusoid_frequencies(4),
        torch.tensor([1.0, 1.0, 1e-2, 1e-2], dtype=torch.float64),
        rtol=1e-14,
        atol=0,
    )


def test_linear_and_zero_slopes() -> None:
    linear, p = LinearDynamics(3), torch.randn(2, 3)
    torch.testing.assert_close(linear(9.0, p), p @ linear.linear.weight.t() + linear.linear.bias)
    assert torch.equal(ZeroDynamics(3)(9.0, p), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, r"`dim` must be a positive integer, but is 0"),
        ({"dim": 2.5}, r"`dim` must be a positive integer, but is 2\.5"),
        ({"dim": 4, "hidden": -1}, r"`hidden` must be a positive integer, but is -1"),
        (
            {"dim": 4, "activation": "swish"},
            r"`activation` must be one of tanh, relu, .*, but is 'swish'",
        ),
        (
            {"dim": 4, "activation": ["tanh"]},
            r"`activation` must be one of tanh, relu, .*, but is \['tanh'\]",
        ),
        ({"dim": 4, "init_scale": -0.5}, r"`init_scale` must be a finite number ≥ 0, but is -0\.5"),
        (
            {"dim": 4, "init_scale": math.nan},
            r"`init_scale` must be a finite number ≥ 0, but is nan",
        ),
        (
            {"dim": 4, "horizon": 0.0},
            r"`horizon` must be a positive finite number or None, but is 0\.0",
        ),
        (
            {"dim": 4, "horizon": math.inf},
            r"`horizon` must be a positive finite number or None, but is inf",
        ),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MLPDynamics(**settings)


@pytest.mark.parametrize("dim", [0, -3, 2.5, "4"])
@pytest.mark.parametrize(
    "make", [floater.LinearDynamics, floater.SinusoidDynamics, floater.ZeroDynamics]
)
def test_size_of_the_references(make: Any, dim: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`dim` must be a positive integer, but is"):
        make(dim)


def test_repr_names_what_was_chosen() -> None:
    assert "activation=gelu, horizon=7.0" in repr(MLPDynamics(4, activation="gelu", horizon=7.0))
