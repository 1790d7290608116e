"""Settings that all tasks with real-valued times share; every default is defined once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...attachments import Sites
from ...config import Config, Count, NotNegative, Positive
from ...encoders import EncoderConfig, FlowConfig, NoPositionConfig
from ...errors import ConfigError
from ...times import Clock
from ...training.placement import AT_ANY_TIME, Placement
from ...training.settings import Share
from ..understanding.config import CompareConfig, FineTuning, MeasuredConfig

PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"layers": 1, "dim": 32, "heads": 2, "feed_forward": 64},
    "small": {"layers": 2, "dim": 64, "heads": 4, "feed_forward": 128},
    "base": {"layers": 4, "dim": 128, "heads": 8, "feed_forward": 256},
}
"""Sizes of a body by the name of the preset."""


class BodyConfig(Config):
    """The Transformer that reads the tokens: BERT's architecture, trained from scratch."""

    preset: Literal["tiny", "small", "base"] = "small"
    """Sizes that the following settings may change."""
    layers: Count | None = None
    dim: Count | None = None
    heads: Count | None = None
    feed_forward: Count | None = None
    dropout: Share = 0.1
    """Of hidden states and attention."""

    def size(self, name: str) -> int:
        """One of layers, dim, heads and feed_forward, from the preset unless it is set."""
        own = getattr(self, name)
        return PRESETS[self.preset][name] if own is None else int(own)

    @model_validator(mode="after")
    def _heads_fit(self) -> BodyConfig:
        if self.size("dim") % self.size("heads"):
            raise ValueError(
                f"`dim` must be a multiple of `heads` = {self.size('heads')}, but is "
                f"{self.size('dim')}"
            )
        return self


class TimedPositions(Placement):
    """Which encoder, at which sites, on which times. A body has no positions of its own."""

    label_without_encoder: ClassVar[str] = "no positions"
    encoder: EncoderConfig | None = FlowConfig(pace="free", zero_init=False, initial_scale=0.1)
    sites: Sites = Sites("input")
    own: Literal["replace"] = "replace"
    times: Literal["real", "index"] = "real"
    """real: tokens stand at the times of the clock. index: at i·Δ, whatever their times."""

    @model_validator(mode="after")
    def _fits(self) -> TimedPositions:
        if self.encoder is None:
            raise ValueError("`encoder` must be given; for no positions, write {kind: none}")
        on_grid = not isinstance(self.encoder, (*AT_ANY_TIME, NoPositionConfig))
        if self.times == "real" and on_grid:
            raise ValueError(
                "`times: real` needs an encoder that serves any time (flow, sinusoidal, fourier or "
                "rotary); for this one, write `times: index`"
            )
        if self.times == "real" and self.jitter is not None:
            raise ValueError("`jitter` moves indices, so it needs `times: index`")
        return self

    def described(self) -> str:
        if isinstance(self.encoder, NoPositionConfig):
            return self.label_without_encoder
        return f"{super().described()} on {'real times' if self.times == 'real' else 'indices'}"


class TimedTraining(FineTuning):
    """How to train a body from scratch; the defaults suit the preset small."""

    part: Literal["all"] = "all"
    epochs: Count = 20
    batch: Annotated[int, Field(ge=1, le=2**16)] = 32
    lr: Positive = 1e-3
    warmup: Share = 0.1
    weight_decay: NotNegative = 0.01
    clip: NotNegative = 1.0
    take: Literal["last", "best"] = "best"


class TimedCompare(CompareConfig):
    """Settings of `floater compare`: every variant has other positions on the same body."""

    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """`positions` of each variant, by name; the first is the base. Default: the run's own positions
    against the same encoder on indices.
    """


class TimedConfig(MeasuredConfig):
    """The settings of one run of a task with real-valued times."""

    model: BodyConfig = BodyConfig()
    clock: Clock = Clock()
    positions: TimedPositions = TimedPositions()
    training: TimedTraining = TimedTraining()
    compare: TimedCompare = TimedCompare()

    @model_validator(mode="after")
    def _clock_fits(self) -> TimedConfig:
        if self.clock.learned is not None and (
            self.positions.times == "index" or not isinstance(self.positions.encoder, AT_ANY_TIME)
        ):
            raise ValueError(
                "`clock.learned` needs `positions` with `times: real` and an encoder that learns "
                "at any time (flow, sinusoidal, fourier or rotary)"
            )
        for name, positions in self.compare.variants.items():
            try:
                type(self.positions)(**positions)
            except ConfigError as error:
                raise ConfigError(f"compare.variants.{name}: {error}") from None
        return self

    def with_positions(self, positions: Mapping[str, Any]) -> TimedConfig:
        """The same run with other positions; a learned clock stays where it can be used."""
        chosen = type(self.positions)(**positions)
        learns = chosen.times == "real" and isinstance(chosen.encoder, AT_ANY_TIME)
        clock = self.clock if learns else self.clock.model_copy(update={"learned": None})
        return self.model_copy(update={"positions": chosen, "clock": clock})

    def variants(self) -> dict[str, TimedConfig]:
        chosen = self.compare.variants
        if len(chosen) == 1:
            raise ConfigError(
                "`compare.variants` must name at least two variants, but names only "
                f"{next(iter(chosen))}."
            )
        if chosen:
            return {name: self.with_positions(positions) for name, positions in chosen.items()}
        if self.positions.times == "index":
            raise ConfigError(
                "`compare.variants` must name variants where `positions.times` is index, but is "
                "empty."
            )
        on_indices = {**self.positions.dump(), "times": "index"}
        return {"index": self.with_positions(on_indices), "real": self}
