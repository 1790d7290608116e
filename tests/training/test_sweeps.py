"""Several backward passes with one reverse sweep give the gradients of one sweep for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from attachments.attach_models import VOCABULARY, make
from floater.encoders import Flow, FlowConfig
from floater.errors import ArgumentError
from floater.ode import discrete
from floater.training import one_sweep

Passes = Callable[[Flow], list[Tensor]]


def flow(**options: Any) -> Flow:
    torch.manual_seed(0)
    settings = {"pace": "free", "zero_init": False, "initial_scale": 0.5, **options}
    built = FlowConfig(**settings).build(3, 8)
    assert isinstance(built, Flow)
    return built.double()


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each reverse sweep."""
    found = []
    original = discrete.reverse_sweep

    def counted(*arguments: Any) -> Any:
        found.append(1)
        return original(*arguments)

    monkeypatch.setattr(discrete, "reverse_sweep", counted)
    return found


def tables(encoder: Flow) -> list[Tensor]:
    return [encoder.table(length) for length in (20, 31, 12)]


def times(encoder: Flow) -> list[Tensor]:
    first = torch.tensor([[0.0, 0.7], [2.3, 0.1]], dtype=torch.float64)
    return [encoder(first), encoder(first + 0.05), encoder(first), encoder(first[0])]


def polynomials(encoder: Flow) -> list[Tensor]:
    found = [encoder.pieces(end) for end in (1.0, 7.0, 3.0)]
    return [piece.coefficients for piece in found if piece is not None]


def gradients(encoder: Flow, outputs: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    for output in outputs:
        (output * torch.randn_like(output)).sum().backward()
    return [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in encoder.parameters()
    ]


@pytest.mark.parametrize("passes", [tables, times, polynomials])
@pytest.mark.parametrize("options", [{}, {"pace": "safe", "length": 30}], ids=["free", "safe"])
def test_gradients_equal_those_of_one_sweep_for_each_pass(
    passes: Passes, options: dict[str, Any]
) -> None:
    usual, together = flow(**options), flow(**options)
    expected = gradients(usual, passes(usual))
    with one_sweep(together):
        before = gradients(together, passes(together))
        assert not any(gradient.any() for gradient in before)
    found = [weight.grad for weight in together.parameters()]
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-10, atol=1e-12)
    # Afterwards, backward passes are complete again.
    again = [gradient.clone() for gradient in gradients(together, passes(together))]
    for gradient, reference in zip(again, expected, strict=True):
        torch.testing.assert_close(gradient, 2 * reference, rtol=1e-10, atol=1e-12)


def test_tables_of_different_lengths_need_one_sweep(sweeps: list[int]) -> None:
    encoder = flow()
    with one_sweep(encoder):
        gradients(encoder, tables(encoder))
        assert not sweeps
    assert len(sweeps) == 1


def test_errors_discard_what_was_collected() -> None:
    encoder = flow()

    def stopped() -> None:
        with one_sweep(encoder):
            gradients(encoder, tables(encoder))
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert all(weight.grad is None for weight in encoder.parameters())
    gradients(encoder, tables(encoder))
    assert all(weight.grad is not None for weight in encoder.parameters())


def test_weights_that_change_between_passes() -> None:
    """Every pass gets the gradient at its own weights."""
    usual, together = flow(), flow()

    def passes(encoder: Flow) -> None:
        for _ in range(2):
            encoder.table(15).square().sum().backward()
            with torch.no_grad():
                encoder.initial.add_(0.1)

    passes(usual)
    with one_sweep(together):
        passes(together)
    for weight, reference in zip(together.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, reference.grad, rtol=1e-10, atol=1e-12)


def test_times_that_require_gradients_and_second_derivatives() -> None:
    encoder = flow()
    moments = torch.tensor([0.3, 1.7], dtype=torch.float64, requires_grad=True)
    with one_sweep(encoder):
        encoder(moments).sum().backward()
        assert encoder.initial.grad is not None
    assert moments.grad is not None
    with one_sweep(encoder):
        output = encoder.table(5).sum()
        with pytest.raises(ArgumentError, match="Second derivatives"):
            torch.autograd.grad(output, encoder.initial, create_graph=True, allow_unused=True)


@pytest.mark.parametrize("jitter", [None, floater.TimeJitter(stretch=2)])
def test_a_model_with_checkpointing(jitter: floater.TimeJitter | None) -> None:
    model = make("bert")
    floater.attach(
        model, FlowConfig(pace="free", zero_init=False, initial_scale=0.5)
    ).jitter = jitter
    model.double().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    other = copy.deepcopy(model)
    batches = [torch.randint(3, VOCABULARY, (2, length)) for length in (9, 12, 7)]

    def accumulate(each: nn.Module) -> None:
        for ids in batches:
            each(input_ids=ids, labels=ids).loss.backward()

    accumulate(model)
    with one_sweep(other):
        accumulate(other)
    for weight, reference in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, reference.grad, rtol=1e-8, atol=1e-10)


def squares(encoder: Flow, length: int = 9) -> Tensor:
    return encoder.table(length).square().sum()


def has_gradient(encoder: Flow) -> bool:
    return encoder.initial.grad is not None


def expect_equal(found: Flow, expected: Flow) -> None:
    for weight, reference in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, reference.grad, rtol=1e-10, atol=1e-12)


def test_a_backward_pass_after_the_block_is_complete_at_once() -> None:
    usual, together = flow(), flow()
    squares(usual).backward()
    with one_sweep(together):
        loss = squares(together)
    loss.backward()
    expect_equal(together, usual)


def test_a_block_inside_another_leaves_it_in_force() -> None:
    usual, together = flow(), flow()
    (squares(usual) + squares(usual, 12)).backward()
    with one_sweep(together):
        first = squares(together)
        with one_sweep(together):
            squares(together, 12).backward()
        assert together.initial.grad is None
        first.backward()
        assert together.initial.grad is None
    expect_equal(together, usual)


def test_times_whose_memory_is_used_again() -> None:
    usual, together = flow(), flow()

    def passes(encoder: Flow) -> None:
        buffer = torch.zeros(5, dtype=torch.float64)
        for factor in (1, 2, 3):
            buffer.copy_(0.1 * factor * torch.arange(5))
            encoder(buffer).square().sum().backward()

    passes(usual)
    with one_sweep(together):
        passes(together)
    expect_equal(together, usual)


def test_times_of_many_shapes_need_one_sweep(sweeps: list[int]) -> None:
    encoder = flow()
    with one_sweep(encoder):
        gradients(encoder, times(encoder))
    assert len(sweeps) == 1


def test_an_optimiser_step_inside_is_refused() -> None:
    encoder, other = flow(), nn.Linear(2, 2)
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
    with one_sweep(encoder):
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        optimiser.step()  # nothing waits yet
        squares(encoder).backward()
        with pytest.raises(ArgumentError, match="must come after `one_sweep`"):
            optimiser.step()
    optimiser.step()


def test_a_flow_that_is_frozen_inside_or_fails_does_not_disturb_the_others() -> None:
    pair = nn.ModuleList([flow(), flow()])
    first, second = pair
    assert isinstance(first, Flow)
    assert isinstance(second, Flow)
    with one_sweep(pair):
        (squares(first) + squares(second)).backward()
        first.requires_grad_(False)
    assert [has_gradient(each) for each in (first, second)] == [False, True]
    first.requires_grad_(True)
    pair.zero_grad()
    (squares(first) + squares(second)).backward()
    assert [has_gradient(each) for each in (first, second)] == [True, True]
