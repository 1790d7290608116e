"""Settings that the tasks on plain text share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from ...config import Config, Count, NotNegative, Positive
from ...encoders import PhaseFlowConfig, TableFlowConfig
from ...encoders.phases import SCALINGS
from ...encoders.tables import TABLE_SCALINGS
from ..understanding.config import FineTuning, TrainedPart, UnderstandingConfig


class TextHub(Config):
    """A data set on the Hugging Face hub with a column `text`."""

    name: str = "Salesforce/wikitext"
    config: str = "wikitext-103-v1"
    train: str = "train"
    valid: str = "validation"


class TextData(Config):
    """The text: files of lines, or a data set on the hub."""

    train: tuple[Path, ...] = ()
    """Text files, plain or .gz; a .jsonl file holds one document per line, as its `text`."""
    valid: tuple[Path, ...] = ()
    hub: TextHub | None = None
    wikitext: bool = False
    """The lines are WikiText's tokens, to be turned back into normal text."""
    apart: bool = False
    """Each line is an example, such as a sentence, a reaction or a document; by default lines are
    concatenated and cut into blocks.
    """
    max_train: Count | None = None
    """Train on the first this many blocks only."""
    max_valid: Count | None = None
    """Evaluate on the first this many blocks only."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.hub is None) != bool(self.train) or bool(self.train) != bool(self.valid):
            raise ValueError("give either `train` and `valid` (lists of text files) or `hub`")
        return self


class FlowTraining(FineTuning):
    """How to train the position encoder alone: one epoch."""

    part: TrainedPart = "flow"
    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.0


class LanguageModelConfig(UnderstandingConfig):
    """One run on plain text; by default, one epoch of the encoder alone."""

    data: TextData
    max_length: Count = 128
    valid_length: Count | None = None
    """Tokens of a held-out block. Default: `max_length`; more of them show how the model does on
    inputs longer than those it is trained on.
    """
    bins: tuple[Count, ...] = ()
    """Positions at which bins begin: the loss is also measured on the tokens of each bin."""
    training: FlowTraining = FlowTraining()

    @field_validator("bins")
    @classmethod
    def _ascending(cls, bins: tuple[int, ...]) -> tuple[int, ...]:
        if any(first >= second for first, second in pairwise(bins)):
            raise ValueError("the positions must ascend")
        return bins

    def bin_names(self) -> list[str]:
        """A name for each bin: "0-128", …, "256+"."""
        edges = (0, *self.bins)
        return [f"{first}-{second}" for first, second in pairwise(edges)] + [f"{edges[-1]}+"]

    def variants(self) -> dict[str, UnderstandingConfig]:
        """The base model, the same with p(start) alone (h ≡ 0), and with the dynamics.

        If the base model is trained too, there is no variant with p(start) alone. For phases, the
        others are the fixed scalings; for a longer table too, and there is no base. If all weights
        are trained with them, one more is trained at the fixed scaling where they start, which
        shows what the weights alone gain.
        """
        all_variants = super().variants()
        encoder = self.positions.encoder
        if isinstance(encoder, PhaseFlowConfig | TableFlowConfig):
            tables = isinstance(encoder, TableFlowConfig)
            fixed = self._scalings(sorted(TABLE_SCALINGS) if tables else SCALINGS[1:])
            nothing = self.training.model_copy(update={"part": "nothing"})
            base = all_variants["base"].model_copy(update={"training": nothing})
            return {
                **({} if tables else {"base": base}),  # with a table it takes no longer inputs
                **fixed,
                **({"trained": self._fixed(encoder)} if self.training.part == "all" else {}),
                "floater": self,
            }
        if self.training.part not in ("flow", "start"):
            return all_variants
        return {
            "base": all_variants["base"],
            "start": self._with("start"),
            "floater": self,
        }

    def _fixed(self, encoder: PhaseFlowConfig | TableFlowConfig) -> UnderstandingConfig:
        """The same run with positions that stay where they start."""
        fixed = encoder.model_copy(update={"learned": False, "exact": False})
        positions = self.positions.model_copy(update={"encoder": fixed})
        return self.model_copy(update={"positions": positions})

    def _scalings(self, names: Sequence[str]) -> dict[str, UnderstandingConfig]:
        """Fixed scalings of phases or a table, nothing trained."""
        encoder = self.positions.encoder
        training = self.training.model_copy(update={"part": "nothing"})
        return {
            scaling: self.model_copy(
                update={
                    "positions": self.positions.model_copy(
                        update={
                            "encoder": encoder.model_copy(  # type: ignore[union-attr]
                                update={"scaling": scaling, "learned": False, "exact": False}
                            ),
                            "jitter": None,
                        }
                    ),
                    "training": training,
                }
            )
            for scaling in names
        }

    def _with(self, part: Literal["start"]) -> LanguageModelConfig:
        return self.model_copy(update={"training": self.training.model_copy(update={"part": part})})
