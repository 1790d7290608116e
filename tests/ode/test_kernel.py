from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import floater
from floater.ode import ACTIVATIONS, compiled

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C compiler was found when floater was installed")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def solved(dim: int, rows: int, activation: str, solver: floater.Dopri5 | floater.RK4, length: int = 60) -> list[Tensor]:
    """States, and the gradients of a fixed functional of them."""
    torch.manual_seed(dim + rows)
    dynamics = floater.MLPDynamics(dim, activation=activation)  # type: ignore[arg-type]
    initial = torch.randn(rows, dim, requires_grad=True)
    states = floater.solve(dynamics, initial, torch.arange(length, dtype=torch.float64) * 0.1, solver=solver)
    cotangent = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    return [states, *torch.autograd.grad(states, (initial, *dynamics.parameters()), cotangent)]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("dim", "rows"), [(16, 1), (32, 5), (48, 6), (64, 7), (64, 18), (128, 26)])
@pytest.mark.parametrize("solver", [floater.Dopri5(), floater.RK4(0.05)], ids=["dopri5", "rk4"])
def test_the_kernel_takes_the_steps_that_tensor_operations_take(
    monkeypatch: pytest.MonkeyPatch, dim: int, rows: int, activation: str, solver: floater.Dopri5 | floater.RK4
) -> None:
    assert compiled.serves(dim, dim, ACTIVATIONS[activation], torch.zeros(1))
    ours = solved(dim, rows, activation, solver)
    monkeypatch.setenv("FLOATER_KERNEL", "0")
    assert not compiled.serves(dim, dim, ACTIVATIONS[activation], torch.zeros(1))
    plain = solved(dim, rows, activation, solver)
    bound = 1e-4 if activation == "relu" else 1e-5  # at a kink, rounding decides which side counts
    for one, other in zip(ours, plain, strict=True):
        assert torch.linalg.vector_norm(one - other) <= bound * torch.linalg.vector_norm(other)


def test_bits_do_not_depend_on_the_number_of_threads(threads: None) -> None:
    made = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        field = field_of(7, 96)
        terms, kept = torch.randn(8, 7 * 96, generator=_seeded(1)), torch.zeros(7, 2 * 7 * 96)
        weights = torch.randn(7, 8, generator=_seeded(2))
        field.stages([0.1 * i for i in range(7)], terms, [], weights, kept)
        made.append((terms, kept))
    for terms, kept in made[1:]:
        assert torch.equal(terms, made[0][0])
        assert torch.equal(kept, made[0][1])


def test_tanh_is_exact_to_rounding_everywhere() -> None:
    special = torch.tensor([0.0, -0.0, 1e-40, 1e-20, 0.6249999, 0.625, 9.0, 9.2, 88.0, 1e30, math.inf, -math.inf, math.nan])
    numbers = torch.cat((special, torch.linspace(-12, 12, 16 * 500 - len(special))))
    dynamics = floater.MLPDynamics(16)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.zero_()
    field = dynamics.field(torch.zeros(500, 16))
    assert isinstance(field, compiled.CompiledField)
    found = torch.empty(len(numbers))
    for first in range(0, len(numbers), 16):  # as biases, so that no product mixes them
        field._biases[0][0] = numbers[first : first + 16]
        kept = torch.zeros(2, 2 * 8000)
        field.stages([0.0, 0.0], torch.zeros(3, 8000), [], torch.zeros(2, 3), kept)
        found[first : first + 16] = kept[1, 16:32]
    expected = numbers.double().tanh()
    assert torch.isnan(found[12])
    real = ~torch.isnan(numbers)
    error = (found.double() - expected).abs()[real]
    assert bool((error <= 3e-7 * expected.abs()[real] + 1e-45).all())


def test_what_it_does_not_serve_goes_the_other_way() -> None:
    like = torch.zeros(1)
    assert not compiled.serves(20, 16, ACTIVATIONS["tanh"], like)
    assert not compiled.serves(16, 20, ACTIVATIONS["tanh"], like)
    assert not compiled.serves(16, 16, ACTIVATIONS["tanh"], like.double())
    assert not compiled.serves(16, 16, ACTIVATIONS["gelu"], like)
    assert len(solved(20, 3, "tanh", floater.Dopri5())) == 6


def field_of(rows: int, dim: int) -> compiled.CompiledField:
    torch.manual_seed(0)
    field = floater.MLPDynamics(dim).field(torch.zeros(rows, dim))
    assert isinstance(field, compiled.CompiledField)
    return field


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)
