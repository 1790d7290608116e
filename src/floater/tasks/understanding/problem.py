"""What a task of language understanding defines: data, head, loss and measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor, nn

from ..padding import PadRight
from .config import MeasuredConfig

Batch = dict[str, Tensor]
Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Table [examples, columns] and how often each example counts [draws, examples] → the score of each
draw [draws].
"""
_SEED = 0  # of `sample`, the same for every run


class Split(Protocol):
    """Data that was read and checked."""

    @property
    def name(self) -> str:
        """Where it came from, for messages."""
        ...

    def __len__(self) -> int: ...

    def fingerprint(self) -> dict[str, Any]:
        """What a run folder records about it, with at least `from` and `sha256`."""
        ...


class Features(Protocol):
    """Encoded inputs."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...

    def lengths(self) -> np.ndarray:
        """Tokens of each input [inputs]."""
        ...


@dataclass(frozen=True)
class Predictions:
    """The predictions on a split.

    Attributes:
        values: ready for JSON.
        table: [examples, columns], from which every score is computed; empty without labels.
    """

    values: Any
    table: np.ndarray


S = TypeVar("S", bound=Split)
F = TypeVar("F", bound=Features)


class Problem(ABC, Generic[S, F]):
    """Data, head, loss and measures. Scores are percentages by default.

    Tasks whose inputs are not text have None in place of a tokenizer.
    """

    auto_class: ClassVar[Any]
    """The Auto class of transformers that has the head."""
    less_is_better: ClassVar[frozenset[str]] = frozenset()
    """Measures of which less is better, such as losses."""
    needs_padding_token: ClassVar[bool] = True
    """Whether the tokenizer must have a padding token."""

    def __init__(self, config: MeasuredConfig) -> None:
        self.config = config

    def with_config(self, config: MeasuredConfig) -> Self:
        """The same kind of problem with other settings."""
        return type(self)(config)

    def without_limits(self) -> Self:
        """The same problem without limits on the size of test sets, for a file of the user's."""
        return self

    @property
    @abstractmethod
    def measures(self) -> Mapping[str, Measure]:
        """How each measure is computed from a table, for resampling; the first is the main one."""

    @abstractmethod
    def splits(self) -> dict[str, S]:
        """All data: `train`, `valid`, and further test sets by name."""

    @abstractmethod
    def read(self, path: Path) -> S:
        """Read a file to evaluate on."""

    def head(self) -> dict[str, Any]:
        """Settings of the model's config that the head needs."""
        return {}

    def prime(self, model: nn.Module, train: F) -> None:
        """Initialise a new head before it is trained alone."""

    @abstractmethod
    def load(self, path: Path) -> tuple[nn.Module, Any]:
        """The trained model in a folder, in eval mode, and its tokenizer, if it has one."""

    @abstractmethod
    def encode(self, split: S, tokenizer: Any, *, training: bool) -> F:
        """The inputs of the model."""

    def collate(self, tokenizer: Any) -> Callable[[Sequence[Any]], Batch]:
        """A function that turns a list of inputs into a batch of tensors.

        Training batches have `labels`; the loss is divided by their number, without those of -100.
        """
        return PadRight(tokenizer.pad_token_id)

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch, summed over its labels."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The outputs for a batch: tensors [inputs, …]."""

    @abstractmethod
    def judge(self, split: S, features: F, outputs: Mapping[str, np.ndarray]) -> Predictions:
        """Predictions and the table of scores, from outputs [inputs, …] padded to the longest."""

    @abstractmethod
    def scores(self, table: np.ndarray) -> dict[str, float]:
        """Every measure of a table."""

    def signature(self, measure: str, split: S) -> str:
        """Everything that a score of a split must share with another to be comparable."""
        return measure


def forward(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    """The model's outputs for a batch without labels; the task computes the loss."""
    return model(**{name: value for name, value in batch.items() if name != "labels"})


def sample(count: int, size: int | None) -> np.ndarray | None:
    """Sorted numbers of `size` examples, always the same ones; None if all are taken."""
    if size is None or size >= count:
        return None
    return np.sort(np.random.default_rng(_SEED).permutation(count)[:size])


class SampledSplit(Protocol):
    """A split of which a sample can be taken."""

    def sampled(self, size: int | None) -> Self:
        """A fixed sample of `size` examples in their order; itself if all are taken."""
        ...


P = TypeVar("P", bound=SampledSplit)


def limit(splits: Mapping[str, P], max_train: int | None, max_valid: int | None) -> dict[str, P]:
    """Splits with a limited number of examples, always the same ones.

    Args:
        splits: by name.
        max_train: limit of the training split.
        max_valid: limit of each other split.
    """
    return {
        name: split.sampled(max_train if name == "train" else max_valid)
        for name, split in splits.items()
    }
