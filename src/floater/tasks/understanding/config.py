"""Settings that all understanding tasks share.

Every option has its one default here or in its task.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from ...attachments import Sites
from ...config import Config, Count, NotNegative, Positive
from ...encoders import EncoderConfig, FlowConfig
from ...errors import ConfigError
from ...training.placement import Placement
from ...training.settings import Pace, RunConfig, Seed, Share, TrainingSettings

T = TypeVar("T")


def is_plain(name: str) -> bool:
    """Whether a name can be that of a file, without folders."""
    return Path(name).name == name and not name.startswith(".")


def _check_names(sets: dict[str, T]) -> dict[str, T]:
    for name in sets:
        if name in ("train", "valid") or not is_plain(name):
            raise ValueError(
                "names of further sets must be plain ones other than train and valid, but one is "
                f"{name!r}"
            )
    return sets


FurtherSets = Annotated[dict[str, T], AfterValidator(_check_names)]
"""Further sets to evaluate on, by name."""
TrainedPart = Literal["all", "flow", "start", "head", "nothing"]
"""What of a model is trained."""


class PretrainedConfig(Config):
    """The pretrained encoder."""

    name: str
    """A folder, a name on the Hugging Face hub, or `pip:package/folder` for weights inside an
    installed package.
    """
    dropout: Share | None = None
    """Dropout of hidden states and attention; the checkpoint's own unless given."""


class UnderstandingPositions(Placement):
    """Which encoder, where.

    The compatible form unless told: a flow at q, k and v that leaves the model as it is.
    """

    bare: ClassVar[str] = "own positions"
    encoder: EncoderConfig | None = FlowConfig()
    sites: Sites = Sites("qkv")
    own: Literal["keep", "replace"] = "keep"


class FineTuning(TrainingSettings):
    """How to fine-tune; after the warm-up the learning rate falls to zero in a straight line.

    RoBERTa's values for GLUE.
    """

    part: TrainedPart = "all"
    """What to train: all; the encoder alone (`flow`); of it p(start) alone (`start`); all that the
    checkpoint's base does not hold (`head`); or nothing, to measure the model as it is.
    """
    epochs: Count = 10
    updates: Count | None = None
    """Optimiser steps, instead of epochs."""
    batch: Annotated[int, Field(ge=1, le=2**16)] = 16
    """Examples a batch."""
    lr: Positive = 1e-5
    warmup: Share = 0.06
    """Share of all updates over which the learning rate rises."""
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.1
    evaluate_every: Count | None = None
    """Updates between two looks at the validation set; an epoch unless given."""
    save_every: Count | None = None
    """Updates between two checkpoints; an epoch unless given."""
    keep: Count = 1
    take: Literal["last", "best"] = "last"
    """Which weights are the run's: the last, or those that were best on the validation set."""
    keep_model: bool = True
    """Keep the weights once the run is finished; without them, there are predictions and scores
    only.
    """
    keep_checkpoints: bool = False
    """Keep the checkpoints once the run is finished."""
    tensorboard: bool = False

    @model_validator(mode="after")
    def _best_is_there(self) -> FineTuning:
        if self.take == "best" and self.save_every != self.evaluate_every:
            raise ValueError(
                "`take: best` needs a checkpoint at every look: set `save_every` as "
                "`evaluate_every`"
            )
        return self

    def pace(self, batches: int) -> Pace:
        """When things happen, with so many batches an epoch."""
        epoch = math.ceil(batches / self.accumulate)
        updates = self.updates or self.epochs * epoch
        return Pace(
            updates,
            round(self.warmup * updates),
            self.evaluate_every or epoch,
            self.save_every or epoch,
        )


class CompareConfig(Config):
    """What `floater compare` does."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """One run of each arm for every seed; the median counts."""
    draws: Annotated[int, Field(ge=1, le=100_000)] = 2000
    """Resamples of the paired bootstrap."""

    @model_validator(mode="after")
    def _different(self) -> CompareConfig:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"`seeds` must be different, but are {', '.join(map(str, self.seeds))}"
            )
        return self


_OF_THE_ENCODER = ("update_every", "flow_lr_multiple", "flow_weight_decay", "freeze_flow")
"""Training settings that an untouched model has no use for."""


class UnderstandingConfig(RunConfig):
    """One run of a task, and both arms of its comparison."""

    task: str
    model: PretrainedConfig
    max_length: Annotated[int, Field(ge=1, le=2**20)] = 512
    """Longest input, in tokens; what is longer is cut."""
    positions: UnderstandingPositions = UnderstandingPositions()
    dynamics: Path | None = None
    """A run or a saved attachment whose trained encoder to start from; `positions` are then its
    own.
    """
    training: FineTuning = FineTuning()
    compare: CompareConfig = CompareConfig()

    @model_validator(mode="after")
    def _fits(self) -> UnderstandingConfig:
        if self.dynamics is not None and self.positions.encoder is None:
            raise ValueError(
                "`dynamics` needs an encoder in `positions`; leave `dynamics` out for the model as "
                "it is"
            )
        if self.positions.encoder is None and self.training.part in ("flow", "start"):
            raise ValueError(
                f"`part` of `training` is {self.training.part}, which needs an encoder in "
                "`positions`"
            )
        return self

    def bare(self) -> UnderstandingConfig:
        """The same run of the untouched model: what belongs to an encoder is left out."""
        off = self.positions.model_copy(update={"encoder": None})
        defaults = {
            name: type(self.training).model_fields[name].default for name in _OF_THE_ENCODER
        }
        training = self.training.model_copy(update=defaults)
        return self.model_copy(update={"positions": off, "dynamics": None, "training": training})

    def variants(self) -> dict[str, UnderstandingConfig]:
        """The runs that `floater compare` makes for each seed; the first is what the others are
        compared with.
        """
        if self.positions.encoder is None:
            raise ConfigError(
                "`positions` must have an encoder to compare with the model as it is, but `encoder`"
                " is null."
            )
        base = self.bare()
        if self.training.part in ("flow", "start"):  # nothing of the base is trained
            base = base.model_copy(
                update={"training": base.training.model_copy(update={"part": "nothing"})}
            )
        return {"base": base, "floater": self}
