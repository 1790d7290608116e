"""Settings that all understanding tasks share.

Every default is defined once, here or in the task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """Whether a name can be used as a file name: no folders, no leading dot."""
    return Path(name).name == name and not name.startswith(".")


def _check_names(sets: dict[str, T]) -> dict[str, T]:
    for name in sets:
        if name in ("train", "valid") or not is_plain(name):
            raise ValueError(
                "names of further test sets must be plain and other than train and valid, but one "
                f"is {name!r}"
            )
    return sets


FurtherSets = Annotated[dict[str, T], AfterValidator(_check_names)]
"""Further test sets, by name."""
TrainedPart = Literal["all", "flow", "start", "head", "nothing"]
"""Which weights of a model are trained."""


class PretrainedConfig(Config):
    """The pretrained encoder."""

    name: str
    """A folder, a name on the Hugging Face hub, or `pip:package/folder` for weights inside an
    installed package.
    """
    dropout: Share | None = None
    """Dropout of hidden states and attention; default: the checkpoint's."""


class UnderstandingPositions(Placement):
    """Which encoder, at which sites.

    By default a flow at q, k and v, which does not change the model before it is trained.
    """

    label_without_encoder: ClassVar[str] = "built-in positions"
    encoder: EncoderConfig | None = FlowConfig()
    sites: Sites = Sites("qkv")
    own: Literal["keep", "replace"] = "keep"


class FineTuning(TrainingSettings):
    """How to fine-tune; after the warm-up the learning rate falls linearly to zero.

    The defaults are RoBERTa's values for GLUE.
    """

    part: TrainedPart = "all"
    """What to train: `all` weights; the position encoder alone (`flow`); only its p(start)
    (`start`); only the weights outside the checkpoint's base model (`head`); or `nothing`, to
    measure the model as it is.
    """
    epochs: Count = 10
    updates: Count | None = None
    """Number of optimiser steps, instead of epochs."""
    batch: Annotated[int, Field(ge=1, le=2**16)] = 16
    """Examples per batch."""
    lr: Positive = 1e-5
    warmup: Share = 0.06
    """Share of all updates over which the learning rate rises."""
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.1
    evaluate_every: Count | None = None
    """Updates between two evaluations on the validation set; default: one epoch."""
    save_every: Count | None = None
    """Updates between two checkpoints; default: one epoch."""
    keep: Count = 1
    take: Literal["last", "best"] = "last"
    """Which weights to use: the last, or the best on the validation set."""
    keep_model: bool = True
    """Save the weights of the finished run; otherwise only predictions and scores remain."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of the finished run."""
    tensorboard: bool = False

    @model_validator(mode="after")
    def _best_is_there(self) -> FineTuning:
        if self.take == "best" and self.save_every != self.evaluate_every:
            raise ValueError(
                "`take: best` needs a checkpoint at every evaluation: set `save_every` equal to "
                "`evaluate_every`"
            )
        return self

    def pace(self, batches: int) -> Pace:
        """Number of updates, and when to evaluate and save.

        Args:
            batches: batches per epoch.
        """
        epoch = math.ceil(batches / self.accumulate)
        updates = self.updates or self.epochs * epoch
        return Pace(
            updates,
            round(self.warmup * updates),
            self.evaluate_every or epoch,
            self.save_every or epoch,
        )


class CompareConfig(Config):
    """Settings of `floater compare`."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """Every variant is run with every seed; the table shows medians."""
    only: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    """Names of the variants to run; the others are left out. Default: all."""
    leave_out: tuple[str, ...] = ()
    """Names of variants that are not run."""
    draws: Annotated[int, Field(ge=1, le=100_000)] = 2000
    """Resamples of the paired bootstrap."""

    @model_validator(mode="after")
    def _different(self) -> CompareConfig:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"`seeds` must be different, but are {', '.join(map(str, self.seeds))}"
            )
        if self.only is not None and len(set(self.only)) < len(self.only):
            raise ValueError(f"`only` must be different names, but are {', '.join(self.only)}")
        return self


class MeasuredConfig(RunConfig):
    """Settings of a task whose runs are measured on test sets and compared with one another."""

    training: FineTuning = FineTuning()
    compare: CompareConfig = CompareConfig()

    def variants(self) -> Mapping[str, MeasuredConfig]:
        """The runs that `floater compare` makes for each seed; the first is the base."""
        raise ConfigError(f"The task {self.task} must have variants to compare, but has none.")

    def chosen_variants(self) -> dict[str, MeasuredConfig]:
        """The variants that `only` names; all by default."""
        variants = self.variants()
        settings = self.compare
        named = {"only": settings.only or (), "leave_out": settings.leave_out}
        for setting, names in named.items():
            if unknown := sorted(set(names) - variants.keys()):
                raise ConfigError(
                    f"`{setting}` of `compare` must name some of {', '.join(variants)}, but names "
                    f"{unknown[0]!r}."
                )
        chosen = set(settings.only or variants) - set(settings.leave_out)
        return {name: own for name, own in variants.items() if name in chosen}


_ENCODER_SETTINGS = ("update_every", "flow_lr_multiple", "flow_weight_decay", "freeze_flow")
"""Training settings that only matter with a position encoder."""


class UnderstandingConfig(MeasuredConfig):
    """The settings of one run of a task, from which `variants` derives those of a comparison."""

    task: str
    model: PretrainedConfig
    max_length: Annotated[int, Field(ge=1, le=2**20)] = 512
    """Longest input in tokens; longer inputs are truncated."""
    positions: UnderstandingPositions = UnderstandingPositions()
    dynamics: Path | None = None
    """A run or a saved attachment whose trained encoder is the starting point; it also determines
    `positions`.
    """

    @model_validator(mode="after")
    def _fits(self) -> UnderstandingConfig:
        if self.dynamics is not None and self.positions.encoder is None:
            raise ValueError(
                "`dynamics` needs an encoder in `positions`; remove `dynamics` to use the model "
                "without one"
            )
        if self.positions.encoder is None and self.training.part in ("flow", "start"):
            raise ValueError(
                f"`part` of `training` is {self.training.part}, which needs an encoder in "
                "`positions`"
            )
        return self

    def without_encoder(self) -> UnderstandingConfig:
        """The same run without a position encoder; settings of the encoder are reset."""
        positions = self.positions.without_encoder()
        defaults = {
            name: type(self.training).model_fields[name].default for name in _ENCODER_SETTINGS
        }
        training = self.training.model_copy(update=defaults)
        changes = {"positions": positions, "dynamics": None, "training": training}
        return self.model_copy(update=changes)

    def variants(self) -> dict[str, UnderstandingConfig]:
        if self.positions.encoder is None:
            raise ConfigError(
                "`positions` must have an encoder to compare with the base model, but `encoder` is "
                "null."
            )
        base = self.without_encoder()
        if self.training.part in ("flow", "start"):  # nothing of the base is trained
            base = base.model_copy(
                update={"training": base.training.model_copy(update={"part": "nothing"})}
            )
        return {"base": base, "floater": self}
