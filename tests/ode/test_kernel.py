from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import floater
from floater.ode import ACTIVATIONS, Stepper, kernel, kernel_field
from floater.ode.discrete import _CoefficientCotangents, reverse_sweep
from floater.ode.fields import StepError
from floater.ode.mlp_field import TensorMLPField
from floater.ode.step_rules import AdaptiveSteps

pytestmark = pytest.mark.skipif(
    kernel.library() is None, reason="no C compiler was found when floater was installed"
)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def solved(
    dim: int, rows: int, activation: str, solver: floater.Dopri5 | floater.RK4, draw: int = 0
) -> list[Tensor]:
    """States, and the gradients of a fixed functional of them."""
    length = 60
    torch.manual_seed(dim + rows + 1000 * draw)
    dynamics = floater.MLPDynamics(dim, activation=activation)  # type: ignore[arg-type]
    initial = torch.randn(rows, dim, requires_grad=True)
    states = floater.solve(
        dynamics, initial, torch.arange(length, dtype=torch.float64) * 0.1, solver=solver
    )
    cotangent = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    return [
        states.detach(),
        *torch.autograd.grad(states, (initial, *dynamics.parameters()), cotangent),
    ]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("dim", "rows"), [(16, 1), (32, 5), (48, 6), (64, 7), (64, 18), (128, 26)])
@pytest.mark.parametrize("solver", [floater.Dopri5(), floater.RK4(0.05)], ids=["dopri5", "rk4"])
def test_the_kernel_takes_the_steps_that_tensor_operations_take(
    monkeypatch: pytest.MonkeyPatch,
    dim: int,
    rows: int,
    activation: str,
    solver: floater.Dopri5 | floater.RK4,
) -> None:
    assert (
        kernel_field.fastest_mlp_field(dim, dim, ACTIVATIONS[activation], torch.zeros(1))
        is kernel_field.KernelMLPField
    )
    # At a kink, rounding may decide how long an adaptive step becomes: there the median of some
    # draws counts, of more than a single trajectory.
    kinks = activation == "relu" and isinstance(solver, floater.Dopri5)
    draws, rows = range(7 if kinks else 1), max(rows, 5) if kinks else rows
    ours = [solved(dim, rows, activation, solver, draw) for draw in draws]
    monkeypatch.setenv("FLOATER_KERNEL", "0")
    assert (
        kernel_field.fastest_mlp_field(dim, dim, ACTIVATIONS[activation], torch.zeros(1))
        is TensorMLPField
    )
    plain = [solved(dim, rows, activation, solver, draw) for draw in draws]
    bound = 1e-4 if activation == "relu" else 1e-5
    pairs = [zip(one, other, strict=True) for one, other in zip(ours, plain, strict=True)]
    apart = torch.tensor(
        [[torch.dist(a, b) / torch.linalg.vector_norm(b) for a, b in pair] for pair in pairs]
    )
    assert bool((apart.median(0).values <= bound).all()), apart


@pytest.mark.parametrize(("before", "after"), [("1", "0"), ("0", "1")])
def test_the_switch_acts_on_new_solves_and_leaves_those_alone_that_have_begun(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    """A trajectory that goes on, and a gradient that goes back, after FLOATER_KERNEL has changed:
    the same bits as without.
    """

    def made(change: bool) -> list[Tensor]:
        monkeypatch.setenv("FLOATER_KERNEL", before)
        torch.manual_seed(0)
        dynamics = floater.MLPDynamics(32)
        initial = torch.randn(5, 32, requires_grad=True)
        path = floater.trajectory(dynamics, initial, end=2.0)
        first = path(torch.arange(20) * 0.1)
        if change:
            monkeypatch.setenv("FLOATER_KERNEL", after)
        later = path(torch.arange(90) * 0.1)
        return [
            first.detach(),
            later.detach(),
            *torch.autograd.grad(later.sum(), (initial, *dynamics.parameters())),
        ]

    for ours, theirs in zip(made(True), made(False), strict=True):
        assert torch.equal(ours, theirs)
    monkeypatch.setenv("FLOATER_KERNEL", after)
    expected = kernel_field.KernelMLPField if after == "1" else TensorMLPField
    assert kernel_field.fastest_mlp_field(32, 32, ACTIVATIONS["tanh"], torch.zeros(1)) is expected


@pytest.mark.parametrize("solver", [floater.Dopri5(), floater.RK4(0.5)], ids=["dopri5", "rk4"])
def test_bits_do_not_depend_on_the_number_of_threads(
    threads: None, solver: floater.Dopri5 | floater.RK4
) -> None:
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        field = field_of(7, 96)
        stepper = Stepper(field, solver, 0.0, keep_stages=True, keep_dense=True)
        stepper.advance(8.0)
        cotangents = torch.randn(
            stepper.steps, stepper.tableau.degree + 1, 7 * 96, generator=_seeded(1)
        )
        gradients = reverse_sweep(stepper, _CoefficientCotangents(cotangents))
        results.append((stepper.state, stepper.tape.window(1), gradients[0], *gradients[1]))
        assert stepper.steps > 3
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert one is not None
            assert two is not None
            assert torch.equal(one, two)


@pytest.mark.parametrize("rows", [1, 7, 13])
@pytest.mark.parametrize("solver", [floater.Dopri5(), floater.RK4(0.5)], ids=["dopri5", "rk4"])
def test_a_whole_step_is_made_of_its_parts(solver: floater.Dopri5 | floater.RK4, rows: int) -> None:
    """Stages, polynomial, error and next state, against the same in float64."""
    torch.manual_seed(0)
    h = floater.MLPDynamics(48)
    field = h.field(torch.randn(rows, 48))
    assert isinstance(field, kernel_field.KernelMLPField)
    stepper = Stepper(field, solver, 0.3, keep_stages=True, keep_dense=True)
    stepper.advance(0.4)
    tableau, (length, *_) = stepper.tableau, stepper.lengths
    h.double()
    start = field.initial.double().view(rows, 48)
    slopes: list[Tensor] = []
    with torch.no_grad():
        for node, coupling in zip(tableau.nodes, tableau.coupling, strict=True):
            state = start.clone()
            for weight, slope in zip(coupling, slopes, strict=False):
                state += length * weight * slope
            slopes.append(h(torch.tensor(0.3 + node * length, dtype=torch.float64), state))
    stages = torch.stack(slopes).view(len(slopes), -1)
    expected = length * torch.tensor(tableau.dense, dtype=torch.float64).T @ stages
    polynomial = stepper.dense.window(0)
    assert torch.equal(polynomial[0], field.initial)
    torch.testing.assert_close(polynomial[1:].double(), expected, rtol=1e-5, atol=1e-5)
    after = start.view(-1) + length * torch.tensor(tableau.coupling[-1]).double() @ stages
    torch.testing.assert_close(stepper.grid[1], 0.3 + length)
    end = stepper.tape.window(0)[-1].view(rows, -1)[:, :48].reshape(-1)
    torch.testing.assert_close(end.double(), after, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(polynomial.sum(0).double(), after, rtol=1e-5, atol=1e-5)


def test_the_error_of_a_whole_step_is_that_of_tensor_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured() -> StepError:
        torch.manual_seed(0)
        field = floater.MLPDynamics(32).field(torch.randn(5, 32))
        assert field is not None
        found: list[StepError] = []
        approve = AdaptiveSteps._compared

        def noting(self: AdaptiveSteps, error: StepError) -> float:
            found.append(error)
            return approve(self, error)

        monkeypatch.setattr(AdaptiveSteps, "_compared", noting)
        Stepper(field, floater.Dopri5(), 0.0, keep_stages=True, keep_dense=True).advance(0.1)
        monkeypatch.setattr(AdaptiveSteps, "_compared", approve)
        return found[0]

    ours = measured()
    monkeypatch.setenv("FLOATER_KERNEL", "0")
    assert ours == pytest.approx(measured(), rel=1e-2)
    assert min(ours) > 0


def test_tanh_is_exact_to_rounding_everywhere() -> None:
    special = torch.tensor(
        [
            0.0,
            -0.0,
            1e-40,
            1e-20,
            0.6249999,
            0.625,
            9.0,
            9.2,
            88.0,
            1e30,
            math.inf,
            -math.inf,
            math.nan,
        ]
    )
    numbers = torch.cat((special, torch.linspace(-12, 12, 16 * 500 - len(special))))
    dynamics = floater.MLPDynamics(16)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.zero_()
    field = dynamics.field(torch.zeros(500, 16))
    assert isinstance(field, kernel_field.KernelMLPField)
    computed = torch.empty(len(numbers))
    for first in range(0, len(numbers), 16):  # as biases, so that no product mixes them
        field.shifts[0][0] = numbers[first : first + 16]
        tape = torch.zeros(field.tape_width)
        field.stage(0.0, torch.empty(field.width), tape)
        computed[first : first + 16] = tape[16:32]
    expected = numbers.double().tanh()
    assert torch.isnan(computed[12])
    real = ~torch.isnan(numbers)
    error = (computed.double() - expected).abs()[real]
    assert bool((error <= 3e-7 * expected.abs()[real] + 1e-45).all())


@pytest.mark.parametrize(
    ("count", "depth", "size"),
    [(1, 1, 16), (5, 7, 64), (6, 32, 2064), (32, 6, 1040), (13, 3, 4096)],
)
def test_mixing_rows_is_a_product_and_no_row_depends_on_another(
    threads: None, count: int, depth: int, size: int
) -> None:
    weights, rows = (
        torch.randn(count, depth, generator=_seeded(1)),
        torch.randn(depth, size, generator=_seeded(2)),
    )
    exact = weights.double() @ rows.double()
    bound = 1e-6 * (weights.double().abs() @ rows.double().abs())
    made = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        made.append(kernel.mix(weights, rows, torch.full((count, size), math.nan)))
    assert bool(((made[0] - exact).abs() <= bound).all())
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])
    last = kernel.mix(weights[-1:], rows, torch.empty(1, size))
    assert torch.equal(last[0], made[0][-1])


@pytest.mark.parametrize(
    ("count", "left", "right"), [(1, 16, 16), (100, 48, 80), (256, 32, 16), (700, 64, 112)]
)
def test_outer_products_are_added_up_the_same_way_by_any_number_of_threads(
    threads: None, count: int, left: int, right: int
) -> None:
    rows = torch.randn(count, left + 24, generator=_seeded(1))[:, 8 : 8 + left]
    others = torch.randn(count, right + 5, generator=_seeded(2))[:, 5:]
    start = torch.randn(left, right, generator=_seeded(3))
    exact = start.double() + rows.double().t() @ others.double()
    size = start.double().abs() + rows.double().abs().t() @ others.double().abs()
    made = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        made.append(start.clone())
        kernel.add_outer(rows, others, made[-1])
    assert bool(((made[0] - exact).abs() <= 2e-6 * size).all())
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_packing_reads_both_layouts() -> None:
    matrix = torch.randn(48, 32, generator=_seeded(3))
    expected = matrix.view(48, 2, 16).transpose(0, 1).reshape(-1)
    assert torch.equal(kernel.pack(matrix), expected)
    assert torch.equal(kernel.pack(matrix.t().contiguous().t()), expected)


def test_what_it_does_not_serve_goes_the_other_way() -> None:
    like = torch.zeros(1)
    assert kernel_field.fastest_mlp_field(20, 16, ACTIVATIONS["tanh"], like) is TensorMLPField
    assert kernel_field.fastest_mlp_field(16, 20, ACTIVATIONS["tanh"], like) is TensorMLPField
    assert (
        kernel_field.fastest_mlp_field(16, 16, ACTIVATIONS["tanh"], like.double()) is TensorMLPField
    )
    assert kernel_field.fastest_mlp_field(16, 16, ACTIVATIONS["gelu"], like) is TensorMLPField
    assert len(solved(20, 3, "tanh", floater.Dopri5())) == 6


def field_of(rows: int, dim: int) -> kernel_field.KernelMLPField:
    torch.manual_seed(0)
    field = floater.MLPDynamics(dim).field(torch.zeros(rows, dim))
    assert isinstance(field, kernel_field.KernelMLPField)
    return field


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def test_a_kernel_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_FUNCTIONS", ("pack", "something_new"))
    monkeypatch.setattr(kernel, "_loaded", [])
    with pytest.warns(UserWarning, match="has no something_new.*install floater again"):
        assert kernel.library() is None
    assert kernel_field.fastest_mlp_field(16, 16, ACTIVATIONS["tanh"], torch.zeros(1)) is (
        TensorMLPField
    )


def test_unknown_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATER_KERNEL", "off")
    with pytest.raises(floater.errors.ArgumentError, match="must be 0, 1, avx2 or avx512, but is"):
        kernel.library()
