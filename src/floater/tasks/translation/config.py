"""Settings of a translation run. Every option has its one default here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...attachments import Sites
from ...config import Config, Count, NotNegative
from ...training.placement import Placement
from ...training.settings import Finite, Pace, RunConfig, Schedule, Share, TrainingSettings
from .embedded import Embedded


def file_list(files: Path | tuple[Path, ...] | None) -> tuple[Path, ...]:
    """The files of a setting that names one, several or none."""
    if files is None:
        return ()
    return (files,) if isinstance(files, Path) else files


class SplitFiles(Config):
    """The files of a split: aligned text files, or TSV files with named columns (or .gz). Several
    files are concatenated.
    """

    source: Path | tuple[Path, ...] | None = None
    target: Path | tuple[Path, ...] | None = None
    tsv: Path | tuple[Path, ...] | None = None
    source_column: str | None = None
    """Name of the column in the TSV file; default: the language."""
    target_column: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> SplitFiles:
        two = self.source is not None and self.target is not None
        if two == (self.tsv is not None) or (self.tsv is not None and (self.source or self.target)):
            raise ValueError(
                "give either `source` and `target` (text files) or `tsv` (files with named columns)"
            )
        if len(file_list(self.source)) != len(file_list(self.target)):
            raise ValueError(
                "`source` and `target` must name equally many files, but name "
                f"{len(file_list(self.source))} and {len(file_list(self.target))}"
            )
        return self


class TranslationHub(Config):
    """A data set of the Hugging Face hub with a column `translation`, such as wmt/wmt14 (de-en,
    fr-en).
    """

    name: str = "wmt/wmt14"
    config: str = "de-en"
    train: str = "train"
    valid: str = "validation"
    test: str = "test"


class TranslationDataConfig(Config):
    """The pairs of sentences, and which of them to train on."""

    source: str
    """Language of the source, e.g. en."""
    target: str
    """Language of the target, e.g. de."""
    train: SplitFiles | None = None
    valid: SplitFiles | None = None
    test: SplitFiles | None = None
    hub: TranslationHub | None = None
    embedded: Embedded | None = None
    max_tokens: Count = 256
    """Longest training sentence, in tokens of the vocabulary."""
    max_source_tokens: Count | None = None
    """Longest training source, in tokens, where targets may be longer; `max_tokens` holds for both.
    """
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Shortest training source, in tokens."""
    min_test_tokens: Annotated[int, Field(ge=0)] = 0
    """Shortest test source, in tokens: shorter ones are left out of the test set."""
    max_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Largest ratio of the two lengths of a training pair; None keeps all.

    WMT's usual value is 1.5.
    """
    max_pairs: Count | None = None
    """Use only this many training pairs, the first ones."""
    hold_out: Count | None = None
    """Hold out this many training pairs, the last ones, for validation; without `valid`."""

    def has_test(self) -> bool:
        """Whether there is a test set."""
        return self.test is not None or self.hub is not None or self.embedded is not None

    @model_validator(mode="after")
    def _somewhere(self) -> TranslationDataConfig:
        if sum(place is not None for place in (self.train, self.hub, self.embedded)) != 1:
            raise ValueError(
                "give one of `train` (files), `hub` (a data set of the hub) and `embedded` (made "
                "here)"
            )
        if self.train is not None and (self.valid is None) == (self.hold_out is None):
            raise ValueError("give one of `valid` (files) and `hold_out` (pairs) beside `train`")
        if self.train is None and self.hold_out is not None:
            raise ValueError("`hold_out` needs `train` (files)")
        return self


class VocabularyConfig(Config):
    """The joint BPE vocabulary of both languages."""

    size: Annotated[int, Field(ge=300, le=10**7)] = 8000
    """Number of entries, 256 bytes and 4 special ones included."""
    min_frequency: Count = 2
    """Minimum frequency of a merge."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "dim": 128, "feed_forward": 256, "heads": 4, "dropout": 0.3},
    "small": {"layers": 6, "dim": 256, "feed_forward": 1024, "heads": 4, "dropout": 0.2},
    "base": {"layers": 6, "dim": 512, "feed_forward": 2048, "heads": 8, "dropout": 0.1},
    "large": {"layers": 6, "dim": 1024, "feed_forward": 4096, "heads": 16, "dropout": 0.3},
}
"""Sizes by name: base and large are the original Transformer's, tiny is the usual one for Multi30k.
"""


class TransformerConfig(Config):
    """The size of the Transformer: a preset, and deviations from it."""

    preset: Literal["tiny", "small", "base", "large"] = "base"
    layers: Annotated[int, Field(ge=1, le=1000)] | None = None
    dim: Annotated[int, Field(ge=1, le=2**16)] | None = None
    feed_forward: Annotated[int, Field(ge=1, le=2**20)] | None = None
    heads: Annotated[int, Field(ge=1, le=2**16)] | None = None
    dropout: Share | None = None
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0

    @model_validator(mode="after")
    def _divisible(self) -> TransformerConfig:
        size = self.size()
        if size["dim"] % size["heads"] or size["dim"] % 2:
            raise ValueError(
                f"`dim` must be even and divisible by `heads` ({size['heads']}), but is "
                f"{size['dim']}"
            )
        return self

    def size(self) -> dict[str, Any]:
        """Layers, widths, heads and dropout; by default those of the preset."""
        return {
            key: default if (value := getattr(self, key)) is None else value
            for key, default in PRESETS[self.preset].items()
        }


class TranslationPositions(Placement):
    """Which encoder, where.

    Without an encoder the model has its own fixed sinusoid: the original Transformer.
    """

    label_without_encoder: ClassVar[str] = "sinusoidal input"
    sites: Sites = Sites("input")
    own: Literal["keep", "replace"] = "replace"
    per_stack: bool = False
    """One encoder for the source and one for the target side, instead of one for both."""

    @model_validator(mode="after")
    def _anywhere(self) -> TranslationPositions:
        if self.jitter is not None and self.own != "replace":
            raise ValueError(
                "`jitter` needs `own: replace`: the model's own sinusoid stays where it is"
            )
        if self.beyond == "compress" and self.own != "replace":
            raise ValueError(
                "`beyond: compress` needs `own: replace`: the model's own sinusoid stays where it "
                "is"
            )
        return self


class TranslationTraining(TrainingSettings):
    """How to train a translator."""

    updates: Count
    """Optimiser steps."""
    warmup: Count = 4000
    """Updates over which the learning rate rises."""
    schedule: Schedule = "inverse_sqrt"
    """How the learning rate changes after the warm-up: it falls with the inverse square root of the
    step, as in the paper; falls in a straight line to zero at the last update; or stays.
    """
    evaluate_every: Count = 1000
    """Updates between two evaluations."""
    save_every: Count = 500
    """Updates between two checkpoints."""
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] = 4096
    """Token budget of a batch on one process: rows × the longest of their sentences, padding
    included.
    """
    label_smoothing: Share = 0.1
    average: Annotated[int, Field(ge=0)] = 5
    """Number of checkpoints to average at the end; 0 takes the last weights."""

    @model_validator(mode="after")
    def _enough(self) -> TranslationTraining:
        if self.average > self.keep:
            raise ValueError(
                f"`average` must not exceed `keep` ({self.keep}), but is {self.average}"
            )
        return self

    def pace(self) -> Pace:
        """How many updates, and when to evaluate and save."""
        return Pace(self.updates, self.warmup, self.evaluate_every, self.save_every)


class DecodingConfig(Config):
    """How to translate."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 4
    length_penalty: Finite = 0.6
    max_ratio: Annotated[float, Field(gt=0, le=1000)] = 2.0
    """Longest translation in multiples of the source length, in tokens; 20 are added."""
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] = 4096
    valid_beam: Annotated[int, Field(ge=1, le=1000)] = 1
    """Beam for the validation BLEU while training."""
    valid_lines: Annotated[int, Field(ge=0)] | None = None
    """Sentences of the validation set that are translated for the BLEU while training, the first
    ones; 0 computes the loss alone, in a fraction of the time. Default: all.
    """
    length_bins: tuple[Count, ...] = ()
    """Edges of bins of source length, in tokens, for separate scores of the test set."""


class TranslationConfig(RunConfig):
    """One translation run."""

    task: Literal["translation"] = "translation"
    data: TranslationDataConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: TransformerConfig = TransformerConfig()
    positions: TranslationPositions = TranslationPositions()
    training: TranslationTraining
    decoding: DecodingConfig = DecodingConfig()
    init_from: Path | None = None
    """A trained run whose vocabulary and weights to start from (the warm start of the paper's
    Appendix B.2).
    """
    init_scale: NotNegative | None = None
    """Standard deviation of the encoder's first weights after a warm start, as in the paper (0
    makes them all zero); default: the initialisation of the encoder.
    """

    @model_validator(mode="after")
    def _warm(self) -> TranslationConfig:
        if self.init_scale is not None and self.init_from is None:
            raise ValueError(
                "`init_scale` belongs to a warm start; give `init_from` too, or set the encoder's "
                "own init_scale"
            )
        if self.init_scale is not None and self.positions.encoder is None:
            raise ValueError("`init_scale` needs an encoder in `positions`")
        return self

    @model_validator(mode="after")
    def _patience_sees_bleu(self) -> TranslationConfig:
        if self.training.patience is not None and self.decoding.valid_lines == 0:
            raise ValueError(
                "`patience` of `training` waits for a better validation BLEU, but `valid_lines` of "
                "`decoding` is 0; leave one of them out"
            )
        return self
