"""Encoders that several test files build."""

from __future__ import annotations

from typing import Any

from floater.encoders import (
    Encoder,
    EncoderConfig,
    Flow,
    FlowConfig,
    FourierConfig,
    LearnedConfig,
    NoPositionConfig,
    RecurrentConfig,
    SinusoidalConfig,
)

ADDITIVE: list[EncoderConfig] = [
    FlowConfig(pace="free", zero_init=False, initial_scale=0.1),
    SinusoidalConfig(),
    SinusoidalConfig(block_term=True),
    FourierConfig(waves=6),
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
    values: dict[str, Any] = {
        "pace": "free",
        "zero_init": False,
        "initial_scale": 0.5,
        **settings,
    }
    encoder = FlowConfig(**values).build(sites, dim)
    assert isinstance(encoder, Flow)
    return encoder
