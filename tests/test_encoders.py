from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import floater
from floater.encoders import (
    Encoder,
    EncoderConfig,
    Flow,
    FlowConfig,
    LearnedConfig,
    NoPositionConfig,
    RecurrentConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from floater.errors import ArgumentError, ConfigError, LengthError, TimesError
from floater.times import uniform

ADDITIVE: list[EncoderConfig] = [
    FlowConfig(zero_init=False, initial_scale=0.1),
    SinusoidalConfig(),
    SinusoidalConfig(block_term=True),
    LearnedConfig(max_length=64),
    RecurrentConfig(),
    RecurrentConfig(layers=2, input="vector"),
    NoPositionConfig(),
]


def build(config: EncoderConfig, sites: int = 3, dim: int = 8) -> Encoder:
    encoder = config.build(sites, dim)
    assert isinstance(encoder, Encoder)
    return encoder


def flow(sites: int = 3, dim: int = 8, **settings: object) -> Flow:
    values: dict[str, Any] = {"zero_init": False, "initial_scale": 0.5, **settings}
    encoder = FlowConfig(**values).build(sites, dim)
    assert isinstance(encoder, Flow)
    return encoder


@pytest.mark.parametrize("config", ADDITIVE, ids=lambda config: type(config).__name__)
def test_tables_have_a_row_a_time_and_site_in_the_type_asked_for(config: EncoderConfig) -> None:
    encoder = build(config)
    assert encoder.table(20).shape == (20, 3, 8)
    grid = torch.tensor([[0.3, 0.0], [0.1, 0.1]], dtype=torch.float64)
    assert encoder(grid).shape == (2, 2, 3, 8)
    torch.testing.assert_close(encoder(grid)[0, 0], encoder.table(4)[3])
    assert encoder.double().table(4).dtype == torch.float64


@pytest.mark.parametrize("config", ADDITIVE, ids=lambda config: type(config).__name__)
def test_an_encoding_does_not_depend_on_how_many_are_asked_for(config: EncoderConfig) -> None:
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


# The reused solution ------------------------------------------------------------------------------


def assert_as_fresh(encoder: Flow, length: int = 30) -> None:
    fresh = (
        FlowConfig(zero_init=False, initial_scale=0.5)
        .build(encoder.sites, encoder.dim)
        .to(encoder.initial)
    )
    fresh.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder.table(length), fresh.table(length))


def step_with(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> Callable[[Flow], None]:
    def change(encoder: Flow) -> None:
        optimiser = make(list(encoder.parameters()))
        encoder.table(30).square().sum().backward()
        optimiser.step()

    return change


def load(assign: bool) -> Callable[[Flow], None]:
    def change(encoder: Flow) -> None:
        encoder.load_state_dict(flow().state_dict(), assign=assign)

    return change


def edit_in_place(encoder: Flow) -> None:
    with torch.no_grad():
        encoder.initial[0, 0] += 1e-3


def edit_data(encoder: Flow) -> None:
    encoder.get_parameter("dynamics.first.weight").data[0, 0] += 1e-3


def edit_data_without_moving_the_sum(encoder: Flow) -> None:
    weight = encoder.get_parameter("dynamics.first.weight").data
    weight[0, 0], weight[1, 1] = weight[1, 1].clone(), weight[0, 0].clone()


def replace_parameter(encoder: Flow) -> None:
    encoder.initial = nn.Parameter(encoder.initial.detach() * 2)


CHANGES: dict[str, Callable[[Flow], None]] = {
    "fused AdamW": step_with(lambda weights: torch.optim.AdamW(weights, fused=True)),
    "foreach AdamW": step_with(lambda weights: torch.optim.AdamW(weights, foreach=True)),
    "for-loop AdamW": step_with(
        lambda weights: torch.optim.AdamW(weights, foreach=False, fused=False)
    ),
    "SGD": step_with(lambda weights: torch.optim.SGD(weights, lr=0.1)),
    "fused SGD": step_with(lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True)),
    "load_state_dict": load(assign=False),
    "load_state_dict(assign=True)": load(assign=True),
    "in place": edit_in_place,
    ".data": edit_data,
    ".data, sum unchanged": edit_data_without_moving_the_sum,
    "a new parameter": replace_parameter,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_reused_table_equals_a_fresh_solve_after(name: str) -> None:
    encoder = flow()
    before = encoder.table(30).detach().clone()
    solves = encoder.solves
    encoder.table(30)
    assert encoder.solves == solves
    CHANGES[name](encoder)
    assert_as_fresh(encoder)
    assert not torch.equal(encoder.table(30), before)
    assert encoder.solves == solves + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_reused_table_follows_a_change_of_type(dtype: torch.dtype) -> None:
    encoder = flow()
    encoder.table(30)
    encoder.to(dtype)
    assert encoder.table(30).dtype == dtype
    assert_as_fresh(encoder)


def test_copies_are_independent() -> None:
    encoder = flow()
    encoder.table(30)
    twin = copy.deepcopy(encoder)
    assert torch.equal(twin.table(30), encoder.table(30))
    edit_data(twin)
    assert_as_fresh(twin)
    assert_as_fresh(encoder)
    assert not torch.equal(twin.table(30), encoder.table(30))


def test_gradients_reach_the_parameters_of_today_after_assign() -> None:
    encoder = flow()
    encoder.table(30)
    same = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(same, assign=True)
    encoder.table(30).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_one_solve_serves_many_micro_batches_and_gradients_add_up() -> None:
    encoder, twin = flow(), flow()
    twin.load_state_dict(encoder.state_dict())
    weights = torch.randn(8, 30, 3, 8)
    for weight in weights:
        (encoder.table(30) * weight).sum().backward()
    assert encoder.solves == 1
    (twin.table(30) * weights.sum(0)).sum().backward()
    for ours, whole in zip(encoder.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, whole.grad, rtol=1e-4, atol=1e-4)


def test_longer_tables_continue_the_solution_and_writing_into_a_result_does_no_harm() -> None:
    encoder = flow()
    with torch.no_grad():
        first = encoder.table(10)
        expected = first.clone()
        first.zero_()
        assert torch.equal(encoder.table(10), expected)
        encoder.table(100)
    assert encoder.solves == 1
    assert_as_fresh(encoder, 100)


def test_a_solution_made_in_inference_mode_serves_training() -> None:
    encoder = flow()
    with torch.inference_mode():
        seen = encoder.table(30)
    table = encoder.table(60)
    table.sum().backward()
    assert encoder.solves == 1
    assert torch.equal(seen, table[:30])
    assert encoder.initial.grad is not None


def test_freezing_and_thawing() -> None:
    encoder = flow()
    encoder.requires_grad_(False)
    assert not encoder.table(5).requires_grad
    encoder.requires_grad_(True)
    encoder.table(5).sum().backward()
    assert encoder.initial.grad is not None


def test_keep_for_holds_the_table_for_k_optimiser_steps() -> None:
    encoder = flow(keep_for=3)
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
    tables, trained = [], []
    for _ in range(6):
        table = encoder.table(10)
        tables.append(table.detach().clone())
        trained.append(table.requires_grad)
        optimiser.zero_grad()
        if table.requires_grad:
            table.square().sum().backward()
        else:
            for parameter in encoder.parameters():
                parameter.grad = torch.ones_like(parameter)
        optimiser.step()
    assert trained == [True, False, False, True, False, False]
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[2], tables[3])
    assert encoder.solves == 2
    encoder.eval()
    assert_as_fresh(encoder)


# Mistakes -----------------------------------------------------------------------------------------


def test_learned_table_ends_with_an_error_or_clamps() -> None:
    with pytest.raises(
        LengthError, match=r"has 64 positions \(0 to 63\), but position 64 was requested; raise"
    ):
        build(LearnedConfig(max_length=64)).table(65)
    clamped = build(LearnedConfig(max_length=64, beyond="clamp")).table(70)
    assert torch.equal(clamped[69], clamped[63])


@pytest.mark.parametrize(
    "config", [LearnedConfig(), RecurrentConfig()], ids=lambda config: type(config).__name__
)
def test_index_encoders_refuse_times_off_the_grid(config: EncoderConfig) -> None:
    with pytest.raises(
        TimesError, match=r"must be multiples of Δ = 0.1 for the \w+ encoder, but contain 0.25"
    ):
        build(config)(torch.tensor([0.1, 0.25]))
    far = uniform(2, first=100_000)
    assert (
        int((far / 0.1).round()[0]) == 100_000
    )  # float noise at large indices is not "off the grid"


@pytest.mark.parametrize("config", ADDITIVE, ids=lambda config: type(config).__name__)
def test_all_encoders_refuse_broken_times(config: EncoderConfig) -> None:
    encoder = build(config)
    for broken, message in (([float("nan")], "finite"), ([-0.1], "negative"), ([], "empty")):
        with pytest.raises(TimesError, match=message):
            encoder(torch.tensor(broken))


def make(config: Any, *unnamed: Any, **settings: Any) -> Any:
    return config(*unnamed, **settings)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: make(FlowConfig, detla=0.1),
            ConfigError,
            r"FlowConfig has no key `detla`; did you mean `delta`\?",
        ),
        (
            lambda: make(FlowConfig, xyzzy=1),
            ConfigError,
            r"FlowConfig has no key `xyzzy`; known keys: delta, hidden",
        ),
        (
            lambda: make(FlowConfig, 0.1),
            ConfigError,
            r"FlowConfig takes its settings by name, .* 0.1 .*; write FlowConfig\(delta=0.1\)",
        ),
        (
            lambda: make(LearnedConfig, 0.2, beyond="clamp"),
            ConfigError,
            r"LearnedConfig takes .* write LearnedConfig\(beyond='clamp', delta=0.2\)",
        ),
        (
            lambda: make(FlowConfig, {"delta": 0.2}),
            ConfigError,
            r"FlowConfig takes .* write FlowConfig\(delta=0.2\)",
        ),
        (
            lambda: setattr(FlowConfig(), "delta", 0.2),
            ConfigError,
            (
                r"FlowConfig must not be changed once it is made, but `delta` was set; make a new"
                r" FlowConfig\(delta=0.2\)"
            ),
        ),
        (
            lambda: RotaryConfig().build(1, 8)(uniform(2), torch.ones(2, 16), torch.ones(2, 16)),
            ArgumentError,
            r"`query` and `key` must have heads of size 8, but have 16 and 16; split them",
        ),
        (
            lambda: FlowConfig(delta=-1),
            ConfigError,
            r"`delta` of FlowConfig: input should be greater than 0, but is -1",
        ),
        (
            lambda: make(FlowConfig, keep_for=0),
            ConfigError,
            r"`keep_for` of FlowConfig: .* but is 0",
        ),
        (
            lambda: make(FlowConfig, activation="sine"),
            ConfigError,
            r"`activation` of FlowConfig: input should be 'tanh'",
        ),
        (
            lambda: make(LearnedConfig, beyond="wrap"),
            ConfigError,
            r"`beyond` of LearnedConfig: .* but is 'wrap'",
        ),
        (
            lambda: make(RecurrentConfig, layers=3),
            ConfigError,
            r"`layers` of RecurrentConfig: .* but is 3",
        ),
        (
            lambda: FlowConfig().build(0, 8),
            ArgumentError,
            r"`sites` must be a positive integer, but is 0",
        ),
        (
            lambda: FlowConfig().build(1, 0),
            ArgumentError,
            r"`dim` must be a positive integer, but is 0",
        ),
        (
            lambda: RotaryConfig().build(1, 7),
            ArgumentError,
            r"`dim` of a rotary head must be an even number ≥ 2",
        ),
        (
            lambda: SinusoidalConfig().build(2, 8, blocks=[1]),
            ArgumentError,
            r"`blocks` must number each of the 2 sites",
        ),
        (
            lambda: Flow(nn.Linear(2, 2), 1, delta=0.1, solver=floater.Dopri5()),
            ArgumentError,
            r"`dynamics` must have an attribute `dim`, but Linear has none",
        ),
    ],
)
def test_mistakes_are_named(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


# Section 2.1 --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("keep_for", [1, 3])
def test_dynamics_off_the_fast_path_train(keep_for: int) -> None:
    """A step of length zero changes no weight but counts as a change; then longer times are asked
    for.
    """
    torch.manual_seed(0)
    flow = (
        floater.FlowConfig(
            pull=1.0, horizon=2.0, zero_init=False, initial_scale=0.5, keep_for=keep_for
        )
        .build(2, 16)
        .train()
    )
    for lr in (0.0, 0.1, 0.1, 0.0):
        optimiser = torch.optim.SGD(flow.parameters(), lr=lr)
        for length in (4, 40):
            table = flow.table(length)
            alone = floater.solve(
                flow.dynamics, flow.initial, torch.arange(length, dtype=torch.float64) * 0.1
            )
            assert torch.allclose(table, alone, atol=1e-6)
        optimiser.zero_grad()
        table.square().sum().backward()
        assert all(parameter.grad is not None for parameter in flow.parameters())
        optimiser.step()
