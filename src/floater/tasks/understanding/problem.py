"""What a task of language understanding must say of itself."""

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


_DRAW = 0  # seed of the choice of examples: the same for every run


class Part(Protocol):
    """Data that was read and checked."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> dict[str, Any]:
        """What a run folder remembers of it, with at least `from` and `sha256`."""
        ...


class Questions(Part, Protocol):
    """A part that is a list of questions."""

    @property
    def questions(self) -> tuple[Any, ...]: ...

    @property
    def name(self) -> str: ...


class Features(Protocol):
    """Encoded inputs."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...

    def lengths(self) -> np.ndarray:
        """Tokens of each input [inputs]."""
        ...


@dataclass(frozen=True)
class Judged:
    """What was predicted, ready for JSON, and a table [examples, columns] from which every score
    follows.
    """

    predictions: Any
    table: np.ndarray


P = TypeVar("P", bound=Part)
F = TypeVar("F", bound=Features)


class Problem(ABC, Generic[P, F]):
    """Data, head and measures of a task. Scores are in per cent unless the task says otherwise."""

    auto_class: ClassVar[Any]
    """Which of transformers' Auto classes has the head."""
    more_is_better: ClassVar[bool] = True

    def __init__(self, config: UnderstandingConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def measures(self) -> Mapping[str, Measure]:
        """How each measure follows from a table, for resampling; the first one is the task's main
        one.
        """

    @property
    def main(self) -> str:
        """Name of the main measure."""
        return next(iter(self.measures))

    @abstractmethod
    def parts(self) -> dict[str, P]:
        """All data: `train`, `valid`, and further sets to evaluate on by their names."""

    @abstractmethod
    def read(self, path: Path) -> P:
        """A file to evaluate on."""

    def head(self) -> dict[str, Any]:
        """Settings of the model's config that the head needs."""
        return {}

    def prime(self, model: nn.Module, train: F) -> None:
        """Change a new head before it is fitted alone."""

    @abstractmethod
    def encode(self, part: P, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> F:
        """Inputs of the model."""

    @abstractmethod
    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        """Inputs → tensors.

        In training they have `labels`, by whose number the loss is divided; -100 is none.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch, summed over its labels."""

    @abstractmethod
    def answer(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """What a model makes of a batch: tensors [inputs, …]."""

    @abstractmethod
    def judge(self, part: P, features: F, answers: Mapping[str, np.ndarray]) -> Judged:
        """Answers [inputs, …], padded to the longest → predictions and the table of scores."""

    @abstractmethod
    def scores(self, table: np.ndarray) -> dict[str, float]:
        """Every measure of a table."""

    def signature(self, measure: str) -> str:
        """What makes a score comparable."""
        return measure


def outputs(model: nn.Module, batch: Batch) -> Any:
    """What a model makes of a batch without its labels: the loss is the task's."""
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"})


def some(count: int, most: int | None) -> np.ndarray | None:
    """Numbers of so many examples, in their order, drawn once and for all; None where all are
    taken.
    """
    if most is None or most >= count:
        return None
    return np.sort(np.random.default_rng(_DRAW).permutation(count)[:most])


Q = TypeVar("Q", bound=Questions)


def capped(found: Mapping[str, Q], max_train: int | None, max_valid: int | None) -> dict[str, Q]:
    """Parts with so many questions at most, drawn once and for all: of the training part, and of
    each other.
    """
    return {
        name: _drawn(part, max_train if name == "train" else max_valid)
        for name, part in found.items()
    }


def _drawn(part: Q, count: int | None) -> Q:
    chosen = some(len(part), count)
    if chosen is None:
        return part
    made: Q = replace(
        part,
        questions=tuple(part.questions[i] for i in chosen),
        name=f"{part.name} ({count} drawn)",
    )  # type: ignore[type-var]
    return made
