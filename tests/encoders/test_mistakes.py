"""Wrong settings and times raise errors that name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import floater
from floater.encoders import (
    EncoderConfig,
    Flow,
    FlowConfig,
    LearnedConfig,
    RecurrentConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from floater.errors import ArgumentError, ConfigError, LengthError, TimesError
from floater.times import uniform

from .builders import ADDITIVE, build


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
            lambda: make(floater.TimeJitter, stretch=True),
            ConfigError,
            r"`stretch` of TimeJitter: must be a number, but is True\.",
        ),
        (
            lambda: make(FlowConfig, horizon=False),
            ConfigError,
            r"`horizon` of FlowConfig: must be a number, but is False\.",
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
                r"FlowConfig must not be changed after it was created, but `delta` was set;"
                r" create a new FlowConfig\(delta=0.2\)"
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
