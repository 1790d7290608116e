"""A solution as polynomials: the same states and gradients as calls with times."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import floater
from floater.errors import ArgumentError, StaleTrajectoryError
from floater.ode import Gradient, kernel
from floater.ode.solve import Trajectory

TIMES = torch.tensor([3.1, 0.0, 5.9, 0.7, 0.7, 2.2, 6.0, 1e-9, 4.4, 4.41, 4.42, 4.43, 4.44])


def problem(
    dtype: torch.dtype, solver: floater.Dopri5 | floater.RK4
) -> tuple[Trajectory, list[Tensor]]:
    torch.manual_seed(0)
    dynamics = floater.MLPDynamics(16, activation="tanh").to(dtype)
    initial = torch.randn(3, 16, dtype=dtype, requires_grad=True)
    solution = Trajectory(
        dynamics, initial, solver=solver, gradient="discrete", start=0.0, keep_dense=True
    )
    return solution, [initial, *dynamics.parameters()]


@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", [floater.Dopri5(), floater.RK4(0.3)], ids=["dopri5", "rk4"])
def test_states_and_gradients_are_those_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
    solver: floater.Dopri5 | floater.RK4,
    dtype: torch.dtype,
    compiled: str,
) -> None:
    monkeypatch.setenv("FLOATER_KERNEL", compiled)
    solution, inputs = problem(dtype, solver)
    cotangent = torch.randn(len(TIMES), 3, 16, dtype=dtype)
    direct = solution(TIMES)
    expected = torch.autograd.grad(direct, inputs, cotangent)
    pieces = solution.pieces(6.0)
    assert pieces.grid[-2] < 6.0 <= pieces.end
    columns = pieces.coefficients.flatten(0, 1).unbind(1)
    located = pieces.locate(TIMES)
    states = torch.stack([located.states(column) for column in columns], 1)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(states, direct, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(states, inputs, cotangent)
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=10 * tolerance * scale)


@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_is_added_to_all_states(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, compiled: str
) -> None:
    monkeypatch.setenv("FLOATER_KERNEL", compiled)
    solution, inputs = problem(dtype, floater.Dopri5())
    pieces = solution.pieces(6.0)
    column = pieces.coefficients.flatten(0, 1)[:, 1]
    located, bias = pieces.locate(TIMES), torch.randn(16, dtype=dtype, requires_grad=True)
    cotangent = torch.randn(len(TIMES), 16, dtype=dtype)
    expected = located.states(column) + bias
    found = located.states(column, bias)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected, [*inputs, bias], cotangent, retain_graph=True)
    ours = torch.autograd.grad(found, [*inputs, bias], cotangent)
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_two_requests_of_one_solution_have_gradients_of_their_own() -> None:
    solution, inputs = problem(torch.float64, floater.Dopri5())
    times = torch.linspace(0, 2, 7)
    gradients = []
    for end in (2.0, 6.0, 2.0):
        pieces = solution.pieces(end)
        column = pieces.coefficients.flatten(0, 1)[:, 1]
        gradients.append(
            torch.autograd.grad(pieces.locate(times).states(column).square().sum(), inputs)
        )
    for first, second, third in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)
        assert torch.equal(first, third)


def test_the_first_time_alone_is_the_initial_state() -> None:
    solution, inputs = problem(torch.float64, floater.Dopri5())
    pieces = solution.pieces(0.0)
    states = pieces.locate(torch.zeros(2)).states(pieces.coefficients.flatten(0, 1)[:, 2])
    assert torch.equal(states, inputs[0][2].expand(2, 16))
    (gradient,) = torch.autograd.grad(states.sum(), inputs[:1])
    assert torch.equal(gradient, torch.tensor([[0.0], [0.0], [2.0]]).expand(3, 16).double())


def test_what_has_no_polynomials_is_refused() -> None:
    initial = torch.ones(3, 4, requires_grad=True)
    dynamics = floater.LinearDynamics(4)
    wrong: list[tuple[Gradient, bool]] = [("adjoint", True), ("discrete", False)]
    for gradient, dense in wrong:
        solution = Trajectory(
            dynamics,
            initial,
            solver=floater.Dopri5(),
            gradient=gradient,
            start=0.0,
            keep_dense=dense,
        )
        with pytest.raises(ArgumentError, match="The polynomials of a trajectory need"):
            solution.pieces(1.0)
    with torch.no_grad():
        solution = floater.trajectory(dynamics, initial, 1.0)
    with pytest.raises(StaleTrajectoryError, match="solved without gradients"):
        solution.pieces(1.0)


_with_kernel = pytest.mark.skipif(
    not hasattr(kernel.library(), "floater_pick_turned"), reason="no compiled kernel"
)


@_with_kernel
def test_no_bit_depends_on_the_number_of_threads() -> None:
    places = torch.arange(301) // 7 % 9 * 5
    weights, rows, bias = torch.rand(301, 5), torch.randn(45, 112), torch.randn(112)
    angles = torch.polar(torch.ones(301, 56), torch.randn(301, 56))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums = kernel.pick(weights, places, rows, bias, angles)
            found.append((sums, *kernel.unpick(weights, places, sums, len(rows), angles)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(other, found[0], strict=True))


@_with_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "terms"), [(16, 5), (64, 4), (112, 1)])
def test_the_kernel_picks_rows_as_a_matrix_product_does(
    size: int, terms: int, threads: int
) -> None:
    draw = np.random.default_rng(size)
    whole = torch.randn(9 * terms, 3 * size)
    rows = whole[:, size : 2 * size]
    places = torch.from_numpy(draw.integers(0, 9, 50).repeat(draw.integers(1, 7, 50)) * terms)
    weights = torch.rand(len(places), terms)
    matrix = torch.zeros(len(places), len(rows))
    for term in range(terms):
        matrix[torch.arange(len(places)), places + term] = weights[:, term]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sums = kernel.pick(weights, places, rows)
        back, total = kernel.unpick(weights, places, sums, len(rows))
        alone = kernel.pick(weights[7:8].contiguous(), places[7:8].contiguous(), rows)
        bias = torch.randn(size)
        biased = kernel.pick(weights, places, rows, bias)
        phases = torch.randn(len(places), size // 2)
        angles = torch.polar(torch.ones_like(phases), phases)
        turned = kernel.pick(weights, places, rows, bias, angles)
        back_turned, _ = kernel.unpick(weights, places, sums, len(rows), angles)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(sums, matrix @ rows)
    torch.testing.assert_close(biased, matrix @ rows + bias)
    torch.testing.assert_close(back, matrix.t() @ sums, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total, sums.sum(0), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(turned, _turned(matrix @ rows, angles) + bias)
    expected = matrix.t() @ _turned(sums, angles.conj())
    torch.testing.assert_close(back_turned, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(alone, sums[7:8]), "a sum does not depend on its neighbours"


def _turned(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = states[:, ::2], states[:, 1::2]
    pairs = (first * angles.real - second * angles.imag, first * angles.imag + second * angles.real)
    return torch.stack(pairs, -1).flatten(1)
