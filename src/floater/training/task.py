"""The base class of a task: everything that `run` needs to train it.

A task is one folder in `tasks/` with a config (`RunConfig`) and a class that derives from `Task`.
`docs/extend.md` shows a complete one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..errors import ArgumentError, ConfigError
from ..runs.comparison import StartCheck, VariantScore
from ..runs.folder import RunFolder
from .settings import Pace, RunConfig, Schedule
from .world import World

FREE_SETTINGS = frozenset({"log_every", "tensorboard", "keep"})
"""Training settings that may change when a run is resumed: they do not affect its weights."""


class TaskData(Protocol):
    """What a task has read and checked before training."""

    @property
    def train(self) -> Any:
        """The training examples: a dataset with a length."""
        ...

    @property
    def fingerprints(self) -> Mapping[str, Mapping[str, Any]]:
        """What a run records about each split: where it came from, its size and its hashes."""
        ...


@dataclass(frozen=True)
class EvaluationRequest:
    """The options of `floater evaluate`; each task accepts some of them.

    Attributes:
        data: a file in the layout of the task.
        source, target: parallel text files.
        length_bins: edges of bins of source length.
        paper_bleu: also compute BLEU as the paper does.
        beam: beam width.
        against: another run to compare with.
        model: weights to use instead of the run's.
        name: name under which predictions and scores are stored.
        beyond: what happens to inputs longer than any in training.
        labels: a file with labels, where they are not in `data`.
        unit: unit of the raw times of `data`.
    """

    data: Path | None = None
    source: Path | None = None
    target: Path | None = None
    length_bins: str = ""
    paper_bleu: bool = False
    beam: int | None = None
    against: Path | None = None
    model: Path | None = None
    name: str = ""
    beyond: str = ""
    labels: Path | None = None
    unit: str = ""


@dataclass(frozen=True)
class PredictionRequest:
    """The options of `floater predict`.

    Attributes:
        data: a file in the layout of the task, without labels.
        out: the CSV file to write.
        labels: a file with further columns that the model needs, where they are not in `data`.
        asked: a file with what is asked, for tasks that answer questions.
        unit: unit of the raw times of `data`.
        model: weights to use instead of the run's.
    """

    data: Path
    out: Path
    labels: Path | None = None
    asked: Path | None = None
    unit: str = ""
    model: Path | None = None


Data = TypeVar("Data", bound=TaskData)


class Task(ABC, Generic[Data]):
    """What to train: data, model, loss, metrics, and what to do with the trained model.

    `run` calls, in this order: `check`, `prepare_dependencies`, `resolve`, `is_finished`,
    `prepare`, `build_model`, `warnings`, `pace`, `loss_function`, `begin` and `describe`; while it
    trains, `loader` and `measure`; then `final_model`, `finish` and `clean_up`.
    """

    config_class: ClassVar[type[RunConfig]]
    schedule: Schedule
    """How the learning rate changes after the warm-up."""
    free_settings: frozenset[str] = FREE_SETTINGS
    """Training settings that may differ when a run is resumed."""
    evaluation_options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `EvaluationRequest` that this task accepts besides against, model, name and
    beyond.
    """
    fused_optimizer: ClassVar[bool] = True
    """Whether the optimiser updates all weights in one pass; rounding differs slightly."""
    more_is_better: bool = True
    """Whether a larger main metric is better."""
    same_start: ClassVar[bool] = True
    """Whether the variants of a comparison shall be the same model before training."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def main(self) -> str:
        """Name of the metric that decides which checkpoint is best."""

    @property
    def model_name(self) -> str:
        """Name of the model in tables."""
        return self.config.task

    @property
    def trains(self) -> bool:
        """Whether there is anything to train; otherwise the model is measured as it is."""
        return True

    # Before training ------------------------------------------------------------------------------

    def check(self, path: Path) -> None:
        """Raise an error for what would stop this run and can be found out quickly.

        Args:
            path: the run folder, which need not exist.
        """

    def check_data(self) -> None:
        """Read all data, to find mistakes in the files before hours are spent on other runs."""

    def prepare_dependencies(self, path: Path, console: Console) -> Task[Data]:
        """Create what this task needs before it can run.

        Args:
            path: folder for it.
            console: where to print progress.

        Returns:
            The task to run instead of this one.
        """
        return self

    def resolve(self) -> Task[Data]:
        """The same task with every inherited setting written out."""
        return self

    def previous(self, folder: RunFolder) -> RunConfig:
        """The settings that an existing run of this task was started with."""
        return self.config_class(**folder.settings())

    def is_finished(self, folder: RunFolder) -> bool:
        """Whether a folder holds this run, finished."""
        return folder.started() and folder.finished()

    def is_measured(self, folder: RunFolder) -> bool:
        """Whether a folder holds the scores and predictions of this run, finished; its weights may
        have been deleted.
        """
        return self.is_finished(folder)

    @abstractmethod
    def prepare(self, folder: RunFolder) -> Data:
        """Read, check and encode the data."""

    @abstractmethod
    def build_model(self, data: Data) -> nn.Module:
        """The model at the start of training; the random state is seeded."""

    def warnings(self, model: nn.Module, data: Data) -> Sequence[str]:
        """What a user should know before training starts."""
        return ()

    def facts(self, model: nn.Module, data: Data) -> dict[str, Any]:
        """What the run folder records about model and data, besides the fingerprints.

        Reports show `parameters` and `position_parameters`. `longest`, the length of the longest
        training example, decides how many positions `store_encodings` stores.
        """
        return {}

    def begin(self, folder: RunFolder, data: Data) -> None:
        """Write files that the run needs later, such as a vocabulary."""

    @abstractmethod
    def describe(self, facts: Mapping[str, Any]) -> str:
        """A line about data and model, printed before training."""

    # Training -------------------------------------------------------------------------------------

    @abstractmethod
    def pace(self, data: Data) -> Pace:
        """How many updates, and when to evaluate and save."""

    @abstractmethod
    def loader(self, data: Data, world: World) -> DataLoader[Any]:
        """The batches of one process. They must depend on seed and epoch only."""

    def loss_function(self) -> Callable[[nn.Module, dict[str, Any]], Tensor] | None:
        """The loss of a batch, summed over its labels; None for the model's own loss."""
        return None

    @abstractmethod
    def measure(self, model: nn.Module, data: Data, world: World) -> dict[str, float]:
        """Metrics on the validation set; every process computes its share and returns the total."""

    # After training -------------------------------------------------------------------------------

    @abstractmethod
    def final_model(self, folder: RunFolder) -> nn.Module:
        """The model of a trained run, from its checkpoints; ready for evaluation."""

    @abstractmethod
    def finish(self, folder: RunFolder, data: Data, model: nn.Module, console: Console) -> None:
        """Save the final model and evaluate it on every test set."""

    def clean_up(self, folder: RunFolder) -> None:
        """Remove what a finished run no longer needs."""

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        """Evaluate a finished run; `floater evaluate`."""
        raise ArgumentError(f"{folder.path} is a run of {self.config.task}, which has no test.")

    def write_predictions(
        self, folder: RunFolder, request: PredictionRequest, console: Console
    ) -> None:
        """Write the predictions of a finished run for a file; `floater predict`."""
        raise ArgumentError(
            f"{folder.path} is a run of {self.config.task}, which has no predictions to write; see "
            "`floater evaluate` and `floater translate`."
        )

    def average(self, folder: RunFolder, last: int, out: Path | None) -> Path:
        """Average the last checkpoints of a run; `floater average`."""
        raise ArgumentError(
            f"{folder.path} is a run of {self.config.task}, whose checkpoints are not averaged; "
            "only those of translation are."
        )

    # Comparing variants ---------------------------------------------------------------------------

    def seeds(self) -> Sequence[int]:
        """The seeds of a comparison."""
        return (self.config.seed,)

    def variants(self, seed: int) -> dict[str, Task[Data]]:
        """The tasks that `floater compare` runs for a seed; the first is the base."""
        raise ConfigError(
            f"`task` must be one that has variants to compare, but {self.config.task} has none; "
            "train two runs and compare them in a report."
        )

    def check_identical_start(self, variants: Sequence[Task[Data]]) -> StartCheck | None:
        """Whether all variants are the same model before training; None if there are not two that
        should be.
        """
        raise NotImplementedError

    def compare(
        self, runs: Mapping[str, Sequence[RunFolder]], *, over_seeds: bool = False
    ) -> list[VariantScore]:
        """Every other variant against the base, from their runs (one per seed).

        Args:
            runs: the runs of each variant; the first variant is the base.
            over_seeds: whether intervals cover the chance in training too, not only that of the
                examples.
        """
        raise NotImplementedError


_COMMON_OPTIONS = frozenset({"against", "model", "name", "beyond"})


def check_options(task: Task[Any], path: Path, request: EvaluationRequest) -> None:
    """Refuse options of `floater evaluate` that a task does not know."""
    accepted = task.evaluation_options | _COMMON_OPTIONS
    for option in fields(request):
        if getattr(request, option.name) and option.name not in accepted:
            name, task_name = option.name.replace("_", "-"), task.config.task
            known = ", ".join(f"--{key.replace('_', '-')}" for key in sorted(accepted))
            raise ArgumentError(
                f"`--{name}` does not apply to {path}, which is a run of {task_name}; use {known}."
            )
