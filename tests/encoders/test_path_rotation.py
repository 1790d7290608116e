"""Flows whose path rotates: dp/dt = Ωp + a learned deviation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.encoders import Flow, path_rotation
from floater.encoders.path_rotation import PathRotation
from floater.errors import ArgumentError


def flow(**settings: object) -> Flow:
    torch.manual_seed(0)
    defaults = {"pace": "free", "rotating": True, "initial_scale": 0.7}
    return floater.FlowConfig(**{**defaults, **settings}).build(sites=3, dim=8)  # type: ignore[arg-type]


def test_without_h_products_of_encodings_depend_on_the_distance_alone() -> None:
    table = flow().double().table(64)
    products = torch.einsum("sid,tjd->ijst", table, table)
    for distance in (0, 1, 7):
        for side in (distance, -distance):
            along = products.diagonal(side, 2, 3)
            torch.testing.assert_close(along, along[..., :1].expand_as(along))
    assert not torch.allclose(products[0, 1, 0, 1], products[0, 1, 0, 8])


def test_without_h_every_dimension_is_a_wave_of_its_own_frequency() -> None:
    encoder = flow().double()
    times = torch.linspace(0, 3, 40, dtype=torch.float64)
    assert encoder.rotation is not None
    speed = encoder.rotation.frequencies / encoder.delta
    start = encoder.initial.view(3, 4, 2)
    angle = times.view(-1, 1, 1) * speed
    first = start[..., 0] * angle.cos() - start[..., 1] * angle.sin()
    torch.testing.assert_close(encoder(times)[..., 0::2], first)


def test_the_path_solves_the_rotating_dynamics() -> None:
    """Against RK4 for dp/dt = Ωp + R(t)·h(t, R(t)⁻¹p)."""
    encoder = flow(zero_init=False, rtol=1e-9, atol=1e-10).double()
    assert encoder.rotation is not None
    speed = encoder.rotation.frequencies / encoder.delta

    def turned(states: Tensor, time: float) -> Tensor:
        at = torch.tensor([time], dtype=torch.float64)
        assert encoder.rotation is not None
        rotated: Tensor = encoder.rotation(states.unsqueeze(0), at).squeeze(0)
        return rotated

    def back(states: Tensor, time: float) -> Tensor:
        angle = time * speed
        first, second = states.unflatten(-1, (-1, 2)).unbind(-1)
        pairs = (
            first * angle.cos() + second * angle.sin(),
            second * angle.cos() - first * angle.sin(),
        )
        return torch.stack(pairs, -1).flatten(-2)

    def slope(time: float, states: Tensor) -> Tensor:
        first, second = states.unflatten(-1, (-1, 2)).unbind(-1)
        rotation = torch.stack((-speed * second, speed * first), -1).flatten(-2)
        at = torch.tensor(time, dtype=torch.float64)
        return rotation + turned(encoder.dynamics(at, back(states, time)), time)

    with torch.no_grad():
        states, step = encoder.initial.clone(), 0.002
        for number in range(500):
            time = number * step
            one = slope(time, states)
            two = slope(time + step / 2, states + step / 2 * one)
            three = slope(time + step / 2, states + step / 2 * two)
            four = slope(time + step, states + step * three)
            states = states + step / 6 * (one + 2 * two + 2 * three + four)
        found = encoder(torch.tensor([1.0], dtype=torch.float64))[0]
    torch.testing.assert_close(found, states, rtol=1e-7, atol=1e-8)


def test_gradients_reach_h_p_start_and_the_times() -> None:
    encoder = flow(zero_init=False, rtol=1e-8, atol=1e-9).double()
    times = torch.tensor([0.3, 0.05, 1.1], dtype=torch.float64, requires_grad=True)
    inputs = (times, encoder.initial)

    def encodings(times: Tensor, initial: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(encoder, {"initial": initial}, times)
        return found

    assert torch.autograd.gradcheck(encodings, inputs, rtol=1e-4, atol=1e-6)
    encoder(times).square().sum().backward()
    for weight in encoder.parameters():
        assert weight.grad is not None
        assert bool(weight.grad.any())


def test_a_fresh_safe_flow_stays_zero_and_heads_have_slow_and_fast_frequencies() -> None:
    fresh = floater.FlowConfig(rotating=True).build(sites=2, dim=64)
    assert not fresh.table(20).any()
    heads = PathRotation(512, 0.1).frequencies.log().view(8, 32)
    assert bool((heads.amin(1) < -8).all())
    assert bool((heads.amax(1) > -1.2).all())


def test_rows_at_times_of_their_own_and_tables_agree() -> None:
    encoder = flow(zero_init=False)
    times = torch.arange(12, dtype=torch.float64) * encoder.delta
    torch.testing.assert_close(encoder(times), encoder.table(12), rtol=0, atol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_polynomials_give_the_same_encodings_and_gradients(bias: bool) -> None:
    encoder = flow(zero_init=False, horizon=2.0)
    times = torch.tensor([0.0, 0.31, 1.7, 0.02], dtype=torch.float64)
    added = torch.randn(8, requires_grad=True) if bias else None
    weights = torch.randn(4, 8)

    def gradients(encodings: Tensor) -> tuple[Tensor, ...]:
        inputs = [*encoder.parameters(), *([] if added is None else [added])]
        return torch.autograd.grad((weights * encodings).sum(), inputs)

    pieces = encoder.pieces(2.0)
    assert pieces is not None
    column = pieces.coefficients.flatten(0, 1)[:, 1]
    found = pieces.locate(times).states(column, added)
    expected = encoder(times)[:, 1] + (0 if added is None else added)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_odd_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="`rotating` needs an even size"):
        floater.FlowConfig(rotating=True).build(sites=1, dim=7)


def test_weights_are_loaded_without_further_state() -> None:
    encoder = flow(zero_init=False)
    other = flow(zero_init=False)
    with torch.no_grad():
        for weight in other.parameters():
            nn.init.normal_(weight)
    other.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(other.table(9), encoder.table(9), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_and_real_products_agree_with_their_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rotation = PathRotation(6, 0.1)
    states = torch.randn(5, 2, 6, dtype=dtype, requires_grad=True)
    times = torch.rand(5, dtype=torch.float64) * 9
    (phases,) = rotation.angles(times, states)
    assert phases.is_complex()
    wished = torch.randn(5, 2, 6, dtype=dtype)
    angles = [part.unsqueeze(-2) for part in (phases.real, phases.imag)]
    real = path_rotation._turned(states, *angles)
    torch.testing.assert_close(rotation(states, times), real, rtol=1e-6, atol=1e-6)
    (expected,) = torch.autograd.grad((real * wished).sum(), states)
    (found,) = torch.autograd.grad((rotation(states, times) * wished).sum(), states)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    half = rotation.angles(times, states.detach().bfloat16())
    assert len(half) == 2  # there are no complex numbers of half precision
