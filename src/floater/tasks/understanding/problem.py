"""What a task of language understanding defines: data, head, loss and measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from .config import UnderstandingConfig

Batch = dict[str, Tensor]
Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Table [examples, columns] and how often each example counts [draws, examples] → the score of each
draw [draws].
"""


_SEED = 0  # of the choice of examples, the same for every run


class Split(Protocol):
    """Data that was read and checked."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def fingerprint(self) -> dict[str, Any]:
        """What a run folder records about it, with at least `from` and `sha256`."""
        ...


class QuestionSplit(Split, Protocol):
    """A split that is a list of questions."""

    @property
    def questions(self) -> tuple[Any, ...]: ...


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
    """Data, head, loss and measures. Scores are percentages unless a task says otherwise."""

    auto_class: ClassVar[Any]
    """The Auto class of transformers that has the head."""
    config: UnderstandingConfig

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
    def encode(self, split: S, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> F:
        """The inputs of the model."""

    @abstractmethod
    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        """A function from inputs to tensors.

        Training batches have `labels`, by whose number the loss is divided; -100 is no label.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch, summed over its labels."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The outputs for a batch: tensors [inputs, …]."""

    @abstractmethod
    def judge(self, split: S, features: F, outputs: Mapping[str, np.ndarray]) -> Predictions:
        """Outputs [inputs, …], padded to the longest → predictions and the table of scores."""

    @abstractmethod
    def scores(self, table: np.ndarray) -> dict[str, float]:
        """Every measure of a table."""

    def signature(self, measure: str) -> str:
        """What makes a score comparable."""
        return measure


def forward(model: nn.Module, batch: Batch) -> Any:
    """The model's outputs for a batch without labels; the task computes the loss."""
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"})


def sample(count: int, size: int | None) -> np.ndarray | None:
    """Sorted numbers of `size` examples, always the same ones; None if all are taken."""
    if size is None or size >= count:
        return None
    return np.sort(np.random.default_rng(_SEED).permutation(count)[:size])


Q = TypeVar("Q", bound=QuestionSplit)


def limit(splits: Mapping[str, Q], max_train: int | None, max_valid: int | None) -> dict[str, Q]:
    """Splits with a limited number of questions, always the same ones.

    Args:
        splits: by name.
        max_train: limit of the training split.
        max_valid: limit of each other split.
    """
    return {
        name: _sampled(split, max_train if name == "train" else max_valid)
        for name, split in splits.items()
    }


def _sampled(split: Q, size: int | None) -> Q:
    chosen = sample(len(split), size)
    if chosen is None:
        return split
    questions = tuple(split.questions[i] for i in chosen)
    smaller: Q = replace(split, questions=questions, name=f"{split.name} ({size} drawn)")  # type: ignore[type-var]
    return smaller
