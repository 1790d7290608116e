"""The pace of training: how far updates move the encodings of a fresh flow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.dynamics import REACH, SENSITIVITY
from floater.encoders import Flow, FlowConfig
from floater.encoders.flow import LENGTH

RATE = 2e-4


def fresh(dim: int, length: int, delta: float = 0.1, sites: int = 2, **settings: object) -> Flow:
    torch.manual_seed(0)
    encoder = FlowConfig(delta=delta, length=length, **settings).build(sites, dim)  # type: ignore[arg-type]
    assert isinstance(encoder, Flow)
    return encoder


def moves(encoder: Flow, length: int, updates: int) -> list[float]:
    """The largest |p| at the last token after each update for a loss linear in the encodings."""
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=RATE, weight_decay=0.0)
    direction = torch.randn(length, encoder.sites, encoder.dim)
    result = []
    for _ in range(updates):
        optimiser.zero_grad()
        (encoder.table(length) * direction).sum().backward()
        optimiser.step()
        with torch.no_grad():
            result.append(float(encoder.table(length)[-1].abs().max()))
    return result


SIZES = [(128, 48, 0.1), (384, 256, 0.1), (384, 256, 1.0), (768, 512, 0.1), (1024, 512, 1.0)]


@pytest.mark.parametrize(("dim", "length", "delta"), SIZES)
def test_an_update_moves_an_encoding_by_a_multiple_of_the_rate(
    dim: int, length: int, delta: float
) -> None:
    """p(start) moves by the rate, and each part of h by `REACH` times it at most, one of them
    by half of that.
    """
    bound = (1 + 2.5 * REACH) * RATE
    after = moves(fresh(dim, length, delta), length, 20 if dim < 500 else 2)
    assert after[0] <= bound
    assert max(now / (n + 1) for n, now in enumerate(after)) <= 1.01 * bound


def test_the_pace_does_not_depend_on_width_spacing_and_length() -> None:
    paces = [moves(fresh(dim, length, delta), length, 1)[0] for dim, length, delta in SIZES]
    assert max(paces) < 1.3 * min(paces)


def test_the_free_pace_grows_with_width_and_length() -> None:
    small, large = (
        moves(fresh(dim, length, pace="free"), length, 1)[0]
        for dim, length in ((128, 48), (384, 256))
    )
    assert small > 50 * RATE
    assert large > 2000 * RATE


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "gelu", "softplus"])
def test_other_nonlinearities_have_a_similar_pace(activation: str) -> None:
    encoder = fresh(64, 256, activation=activation)
    assert moves(encoder, 256, 1)[0] <= 2 * (1 + 2.5 * REACH) * RATE


def test_shorter_inputs_move_in_proportion() -> None:
    encoder = fresh(128, 512)
    (moved,) = moves(encoder, 64, 1)
    assert RATE < moved <= (1 + 2.5 * REACH * 64 / 512) * RATE


@pytest.mark.parametrize("settings", [{}, {"horizon": 3.0}, {"horizon": 3.0, "pull": 0.5}])
def test_a_fresh_flow_is_exactly_zero_and_learns_at_once(settings: dict[str, Any]) -> None:
    encoder = fresh(32, 128, **settings)
    table = encoder.table(128)
    assert torch.count_nonzero(table) == 0
    (table * torch.randn_like(table)).sum().backward()
    for name in ("initial", "dynamics.second.weight", "dynamics.second.bias"):
        gradient = encoder.get_parameter(name).grad
        assert gradient is not None
        assert torch.count_nonzero(gradient) == gradient.numel()


def directions(encoder: Flow, length: int) -> int:
    """The number of singular values of the hidden units as functions of the position that exceed
    a hundredth of the largest.
    """
    dynamics = encoder.dynamics
    assert isinstance(dynamics, floater.MLPDynamics)
    weight, bias, _, _ = (tensor.detach() for tensor in dynamics.field_inputs())
    times = encoder.delta * torch.arange(length)
    units = torch.tanh(times[:, None] * weight[:, -1] + bias)
    values: Tensor = torch.linalg.svdvals(units)
    return int((values > 0.01 * values[0]).sum())


@pytest.mark.parametrize("length", [48, 256, 512])
def test_the_hidden_units_are_different_functions_of_the_position(length: int) -> None:
    assert directions(fresh(384, length), length) >= 10
    assert directions(fresh(384, length, pace="free"), length) <= 3


def test_the_free_pace_is_the_plain_network() -> None:
    torch.manual_seed(0)
    encoder = FlowConfig(pace="free", zero_init=False).build(2, 16)
    torch.manual_seed(0)
    first, second = nn.Linear(17, 16), nn.Linear(17, 16)
    for layer in (first, second):
        nn.init.xavier_normal_(layer.weight, gain=0.5)
        nn.init.zeros_(layer.bias)
    assert isinstance(encoder.dynamics, floater.MLPDynamics)
    used = encoder.dynamics.field_inputs()
    own = list(encoder.dynamics.parameters())
    assert all(tensor is parameter for tensor, parameter in zip(used, own, strict=True))
    expected = (first.weight, first.bias, second.weight, second.bias)
    assert all(map(torch.equal, used, expected))


def test_the_number_of_parameters_is_the_papers() -> None:
    assert fresh(512, 512).dynamics_parameters() == 526_336


@pytest.mark.parametrize(
    ("settings", "positions", "length"),
    [
        ({}, 64, 64),
        ({}, 514, LENGTH),
        ({}, 8192, LENGTH),
        ({}, None, LENGTH),
        ({"length": 2048}, 64, 2048),
        ({"pace": "free"}, 64, None),
    ],
)
def test_a_model_determines_the_length(
    settings: dict[str, object], positions: int | None, length: int | None
) -> None:
    config = FlowConfig(**settings).fitted(positions)  # type: ignore[arg-type]
    assert config.length == length


def test_a_span_changes_the_weights_that_the_solver_sees_and_nothing_else() -> None:
    """The same network with its weights scaled by hand gives the same solution and gradients."""
    torch.manual_seed(0)
    scaled = floater.MLPDynamics(3, 5, span=20.0, reach=7.0).double()
    nn.init.normal_(scaled.second.weight)
    nn.init.normal_(scaled.second.bias)
    plain = floater.MLPDynamics(3, 5).double()
    with torch.no_grad():
        for parameter, value in zip(plain.parameters(), scaled.field_inputs(), strict=True):
            parameter.copy_(value)
    factor = 7.0 / 20.0
    torch.testing.assert_close(plain.second.bias, factor * scaled.second.bias)
    torch.testing.assert_close(
        plain.second.weight[:, :-1], factor / 5 * scaled.second.weight[:, :-1]
    )
    torch.testing.assert_close(
        plain.second.weight[:, -1], factor / 20 * scaled.second.weight[:, -1]
    )
    torch.testing.assert_close(plain.first.weight[:, -1], scaled.first.weight[:, -1] / 20)
    torch.testing.assert_close(
        plain.first.weight[:, :-1], SENSITIVITY * scaled.first.weight[:, :-1]
    )
    initial, times = torch.randn(4, 3, dtype=torch.float64), torch.linspace(0, 25, 9)
    states = [floater.solve(dynamics, initial, times) for dynamics in (scaled, plain)]
    assert torch.equal(*states)
    for state in states:
        state.square().sum().backward()
    assert scaled.second.bias.grad is not None
    assert plain.second.bias.grad is not None
    torch.testing.assert_close(scaled.second.bias.grad, factor * plain.second.bias.grad)


def test_micro_batches_add_their_gradients() -> None:
    encoder = fresh(16, 32)
    nn.init.normal_(encoder.get_parameter("dynamics.second.weight"))
    weights = torch.randn(2, 32, 2, 16)
    sums = []
    for together in (True, False):
        encoder.zero_grad()
        if together:
            (encoder.table(32) * weights.sum(0)).sum().backward()
        else:
            for part in weights:
                (encoder.table(32) * part).sum().backward()
        gradient = encoder.get_parameter("dynamics.first.weight").grad
        assert gradient is not None
        sums.append(gradient.clone())
    assert encoder.solves == 1
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-5)


def test_sites_move_apart_although_they_start_as_one() -> None:
    """With origins, h sees where a path belongs; without them all sites have the same path."""
    spreads = []
    paces: tuple[dict[str, Any], ...] = ({}, {"pace": "free"})
    for settings in paces:
        encoder = fresh(64, 128, sites=6, **settings)
        direction = torch.randn(128, 6, 64)
        (encoder.table(128) * direction).sum().backward()
        with torch.no_grad():
            for layer in ("weight", "bias"):
                parameter = encoder.get_parameter(f"dynamics.second.{layer}")
                assert parameter.grad is not None
                parameter.sub_(RATE * parameter.grad.sign())
            table = encoder.table(128)
        spreads.append(float(table[-1].std(0).norm() / table[-1].norm(dim=-1).mean()))
    assert spreads[0] > 0.05
    assert spreads[1] == 0


def test_the_starting_points_get_gradients_after_an_evaluation() -> None:
    """A solution that was computed without gradients serves a later call that needs them."""
    encoder = fresh(16, 32)
    with torch.no_grad():
        encoder.table(32)
    for solves, frozen in ((1, False), (2, True), (3, False)):
        encoder.initial.requires_grad_(not frozen)
        encoder.zero_grad()
        for _ in range(2):
            encoder.table(32).sum().backward()
        gradient = encoder.initial.grad
        assert frozen is (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, torch.full_like(gradient, 64.0))
        assert encoder.solves == solves


def test_half_precision_keeps_small_encodings() -> None:
    encoder = fresh(16, 32)
    with torch.no_grad():
        encoder.initial.fill_(1e-3)
    encoder.to(torch.bfloat16)
    table = encoder.table(32)
    assert table.dtype == torch.bfloat16
    torch.testing.assert_close(
        table.float(), torch.full_like(table, 1e-3).float(), rtol=0.01, atol=0
    )
