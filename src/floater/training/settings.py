"""Settings of training that all tasks share.

Every option has its one default here or in its task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ..config import Config, Count, NotNegative, Positive
from .placement import Placement

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Schedule = Literal["inverse_sqrt", "linear", "constant_with_warmup"]
"""How the learning rate changes after the warm-up."""


class TrainingSettings(Config):
    """How to train, whatever the task."""

    updates: Count | None = None
    """Optimiser steps; None if the task counts epochs."""
    accumulate: Count = 1
    """Batches whose gradients make one update."""
    lr: Positive = 7e-4
    """Peak learning rate, reached after the warm-up."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Positive = 1e-9
    """Added to Adam's denominator."""
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0
    """Largest norm of the gradient; 0 does not clip."""
    flow_lr_multiple: Positive = 1.0
    """Learning rate of the encoder's weights, as a multiple of `lr`."""
    flow_weight_decay: NotNegative = 0.0
    update_every: Count = 1
    """Train the encoder's weights in every k-th step only."""
    freeze_flow: bool = False
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    keep: Count = 5
    """Number of checkpoints to keep: the last ones, in addition to the best."""
    patience: Count | None = None
    """Stop after this many evaluations without improvement; None never stops early."""
    log_every: Count = 50
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of torch on the CPU."""
    tensorboard: bool = True

    def groups(self) -> dict[str, Any]:
        """Arguments of `parameter_groups` except `lr`."""
        return {
            "weight_decay": self.weight_decay,
            "flow_lr_multiple": self.flow_lr_multiple,
            "flow_weight_decay": self.flow_weight_decay,
        }


@dataclass(frozen=True)
class Pace:
    """How long to train, and when to evaluate and save, in updates."""

    updates: int
    warmup: int
    """Updates over which the learning rate rises."""
    evaluate_every: int
    save_every: int


class RunConfig(Config):
    """The settings of a run; each task adds its own."""

    task: str
    positions: Placement
    """Which encoder, at which sites."""
    training: TrainingSettings
    seed: Seed = 0

    def dump(self) -> dict[str, Any]:
        """The settings as in a config file, with every default written out."""
        return {**self.model_dump(mode="json"), "positions": self.positions.dump()}
