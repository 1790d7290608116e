"""What each encoder computes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from floater.encoders import (
    ENCODER_CONFIGS,
    EncoderConfig,
    FlowConfig,
    PhaseFlowConfig,
    RecurrentConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
    TableFlowConfig,
)
from floater.times import uniform

from .builders import ADDITIVE, build, flow


@pytest.mark.parametrize("config", ADDITIVE, ids=lambda config: type(config).__name__)
def test_tables_have_a_row_per_time_and_site_in_the_type_requested(config: EncoderConfig) -> None:
    encoder = build(config)
    assert encoder.table(20).shape == (20, 3, 8)
    grid = torch.tensor([[0.3, 0.0], [0.1, 0.1]], dtype=torch.float64)
    assert encoder(grid).shape == (2, 2, 3, 8)
    torch.testing.assert_close(encoder(grid)[0, 0], encoder.table(4)[3])
    assert encoder.double().table(4).dtype == torch.float64


@pytest.mark.parametrize("config", ADDITIVE, ids=lambda config: type(config).__name__)
def test_an_encoding_does_not_depend_on_how_many_are_requested(config: EncoderConfig) -> None:
    encoder = build(config)
    assert torch.equal(encoder.table(17), encoder.table(40)[:17])


def test_parameter_counts_of_the_paper() -> None:
    encoder = FlowConfig().build(18, 512)
    assert encoder.dynamics_parameters() == 526_336
    assert encoder.num_parameters() == 526_336 + 18 * 512
    one, two = RecurrentConfig().build(18, 512), RecurrentConfig(layers=2).build(18, 512)
    assert (one.cell_parameters(), two.cell_parameters()) == (263_168, 526_336)
    assert RecurrentConfig(layers=2, input="vector").build(18, 512).cell_parameters() == 1_049_600


def test_sinusoids_are_equation_3_and_4() -> None:
    dim, c = 8, 1e-4
    table = build(SinusoidalConfig(), sites=2, dim=dim).table(50)
    blocks = build(SinusoidalConfig(block_term=True), sites=2, dim=dim).table(50)
    for i in (0, 1, 7, 49):
        for j in range(dim):
            wave = torch.sin if j % 2 == 0 else torch.cos
            omega = c ** ((j - j % 2) / dim)
            plain = wave(torch.tensor(i * omega, dtype=torch.float64)).item()
            assert table[i, 0, j].item() == pytest.approx(plain, abs=1e-6)
            for n in (1, 2):
                extra = wave(torch.tensor(n * omega, dtype=torch.float64)).item()
                assert blocks[i, n - 1, j].item() == pytest.approx(plain + extra, abs=1e-6)


def test_sinusoids_take_the_block_numbers_they_are_given() -> None:
    encoder = SinusoidalConfig(block_term=True).build(3, 8, blocks=[2, 2, 1])
    table = encoder.table(5)
    assert torch.equal(table[:, 0], table[:, 1])
    assert torch.equal(
        table[:, 2], build(SinusoidalConfig(block_term=True), sites=1).table(5)[:, 0]
    )


def test_recurrent_encoder_is_the_recurrence() -> None:
    encoder = RecurrentConfig(layers=2).build(2, 4)
    state: Tensor = encoder.initial
    for i in range(6):
        torch.testing.assert_close(encoder.table(7)[i], state)
        for layer in encoder.cells:
            assert isinstance(layer, nn.Linear)
            seen = torch.full((2, 1), i * encoder.delta)
            state = torch.tanh(torch.cat((seen, state), 1) @ layer.weight.t() + layer.bias)


def test_rotary_products_depend_on_distances_only() -> None:
    rotary = RotaryConfig().build(1, 16)
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)

    def product(query_time: float, key_time: float) -> float:
        turned, _ = rotary(torch.tensor([query_time], dtype=torch.float64), q, q)
        _, other = rotary(torch.tensor([key_time], dtype=torch.float64), k, k)
        return float((turned * other).sum())

    assert product(0.3, 0.7) == pytest.approx(product(12.33, 12.73), abs=1e-6)
    assert product(0.3, 0.7) != pytest.approx(product(0.3, 0.8), abs=1e-4)
    assert product(0.0, 0.0) == pytest.approx(float((q * k).sum()), abs=1e-9)
    listed, _ = rotary([0.3], q, q)
    assert torch.equal(listed, rotary(torch.tensor([0.3], dtype=torch.float64), q, q)[0])
    turned, _ = rotary(uniform(5), q.expand(1, 5, 16), k.expand(1, 5, 16))
    torch.testing.assert_close(turned.norm(dim=-1), q.norm().expand(1, 5))


def test_fresh_flow_is_exactly_zero_and_learns() -> None:
    encoder = FlowConfig().build(3, 8)
    table = encoder.table(40)
    assert not table.any()
    (table * torch.randn_like(table)).sum().backward()
    assert encoder.initial.grad is not None
    assert encoder.initial.grad.any()
    last = encoder.get_parameter("dynamics.second.weight")
    assert last.grad is not None
    assert last.grad.any()


def attention_block(dim: int) -> Callable[[Tensor], Tensor]:
    layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, dropout=0.0, batch_first=True).double()
    return lambda x: layer(x.unsqueeze(0))[0]


def test_self_attention_is_permutation_equivariant_until_positions_are_added() -> None:
    block, permutation = attention_block(8), torch.randperm(12)
    x = torch.randn(12, 8, dtype=torch.float64)
    torch.testing.assert_close(block(x)[permutation], block(x[permutation]))
    positions = flow(1, 8).double().table(12)[:, 0]
    with_positions = block(x + positions)[permutation] - block(x[permutation] + positions)
    assert with_positions.abs().max() > 1e-3


def test_a_recurrent_encoder_steps_once_as_long_as_its_weights_stay() -> None:
    encoder = RecurrentConfig(layers=2, input="vector").build(3, 8)
    steps = 0
    plain = encoder._step

    def counted(position: int, state: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return plain(position, state)

    encoder._step = counted  # type: ignore[method-assign]
    with torch.inference_mode():
        first = encoder.table(20)
        assert steps == 19
        assert torch.equal(encoder.table(30)[:20], first)
        assert steps == 29
    learned = encoder.table(30)
    assert learned.requires_grad
    assert torch.equal(learned, encoder.table(30).detach())
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.data.add_(0.01)
        changed = encoder.table(20)
        assert not torch.equal(changed, first)
        assert torch.equal(changed, copy.deepcopy(encoder).table(20))


def test_every_additive_encoder_is_tested() -> None:
    tested = {type(config) for config in ADDITIVE}
    # they have tests of their own
    elsewhere = {RotaryConfig, RelativeConfig, PhaseFlowConfig, TableFlowConfig}
    assert tested == {*ENCODER_CONFIGS.values()} - elsewhere
