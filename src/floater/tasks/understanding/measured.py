"""The base class of tasks that are measured on test sets by resampling, and compared in pairs."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rich.console import Console
from torch import Tensor, nn
from transformers import set_seed

from ...printing import print_text
from ...runs.comparison import StartCheck, VariantScore
from ...runs.folder import RunFolder
from ...training.checkpoints import checkpoints, require_checkpoints, state_of, step_of
from ...training.extract_encodings import store_encodings
from ...training.loader import EpochLoader
from ...training.settings import Pace
from ...training.task import FREE_SETTINGS, EvaluationRequest, Task
from ...training.world import ALONE, World
from .batches import LengthBatches
from .config import MeasuredConfig
from .evaluation import describe, evaluate, evaluate_run
from .models import parameter_counts
from .predicting import predict_all
from .problem import Features, Problem, Split
from .variant_scores import StartOutputs, compare_variants, outputs_at_start, same_outputs


@dataclass(frozen=True)
class MeasuredData:
    """Everything that is read and checked before training starts.

    Attributes:
        tokenizer: the model's; None for tasks whose inputs are not text.
        splits: the data, by name.
        train, valid: encoded inputs.
    """

    tokenizer: Any
    splits: Mapping[str, Any]
    train: Any
    valid: Any

    @property
    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """What a run records about each split."""
        return {name: split.fingerprint() for name, split in self.splits.items()}


S = TypeVar("S", bound=Split)
F = TypeVar("F", bound=Features)
D = TypeVar("D", bound=MeasuredData)


class MeasuredTask(Problem[S, F], Task[D]):
    """A task whose model is trained on `train`, watched on `valid` and measured on all other sets.

    A task that derives from it implements `Problem`, `prepare`, `build_model` and `save`.
    """

    config: MeasuredConfig
    config_class: ClassVar[type[MeasuredConfig]]
    schedule = "linear"
    free_settings = FREE_SETTINGS | {"keep_model", "keep_checkpoints", "threads"}
    evaluation_options = frozenset({"data"})

    @property
    def main(self) -> str:
        return next(iter(self.measures))

    @abstractmethod
    def save(self, folder: RunFolder, model: Any, tokenizer: Any) -> None:
        """Save the finished model, as far as the config asks for it."""

    # Before training ------------------------------------------------------------------------------

    def check_data(self) -> None:
        self.splits()

    def facts(self, model: nn.Module, data: D) -> dict[str, Any]:
        batches = self._batches(data, ALONE)
        return {
            **parameter_counts(model),
            "training_inputs": len(data.train),
            "longest": int(data.train.lengths().max()),
            "batches_per_epoch": len(batches),
            "padding": round(batches.padding(), 4),
        }

    def describe(self, facts: Mapping[str, Any]) -> str:
        return (
            f"{facts['training_inputs']:,} inputs in {facts['batches_per_epoch']:,} batches per "
            f"epoch ({100 * facts['padding']:.1f} % padding); {facts['parameters']:,} parameters, "
            f"{facts['trained_parameters']:,} of them trained, {facts['position_parameters']:,} "
            f"for positions ({facts['positions']})"
        )

    # Training -------------------------------------------------------------------------------------

    def pace(self, data: D) -> Pace:
        return self.config.training.pace(len(self._batches(data, ALONE)))

    def loader(self, data: D, world: World) -> EpochLoader:
        collate = self.collate(data.tokenizer)
        return EpochLoader(data.train, self._batches(data, world), collate, self.config.seed)

    def _batches(self, data: D, world: World) -> LengthBatches:
        return LengthBatches(
            data.train.lengths(),
            self.config.training.batch,
            self.config.seed,
            world=world,
            follow=getattr(data.train, "set_epoch", None),
        )

    def loss_function(self) -> Callable[[nn.Module, dict[str, Any]], Tensor]:
        return self.loss

    def measure(self, model: nn.Module, data: D, world: World) -> dict[str, float]:
        outputs = predict_all(self, model, data.valid, data.tokenizer, world=world)
        return self.scores(self.judge(data.splits["valid"], data.valid, outputs).table)

    # After training -------------------------------------------------------------------------------

    def final_model(self, folder: RunFolder) -> nn.Module:
        """The last or the best weights."""
        chosen = require_checkpoints(folder.checkpoints)[-1]
        if self.config.training.take == "best":
            best = state_of(chosen).get("best_global_step")
            existing = checkpoints(folder.checkpoints)
            chosen = next((path for path in existing if step_of(path) == best), chosen)
        folder.note(taken=chosen.name)
        return self.load_checkpoint(folder, chosen)

    def load_checkpoint(self, folder: RunFolder, checkpoint: Path) -> nn.Module:
        """The model of a checkpoint, in eval mode."""
        return self.load(checkpoint)[0]

    def finish(self, folder: RunFolder, data: D, model: nn.Module, console: Console) -> None:
        for name, split in data.splits.items():
            if name != "train":
                scores = evaluate(
                    self, model, split, data.tokenizer, folder, name=name, console=console
                )
                print_text(console, f"{name}: {describe(scores)}")
        if self.trains:
            self.store_positions(folder, model)
            self.save(folder, model, data.tokenizer)

    def store_positions(self, folder: RunFolder, model: nn.Module) -> None:
        """Store the encodings of the model, for reports and plots."""
        store_encodings(folder, model)

    def clean_up(self, folder: RunFolder) -> None:
        if not self.config.training.keep_checkpoints:
            shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        """Measure a run on a file, or on its own test sets; optionally compare with another run."""
        evaluate_run(self, folder, request, console)

    # Comparing variants ---------------------------------------------------------------------------

    def seeds(self) -> Sequence[int]:
        return self.config.compare.seeds

    def variants(self, seed: int) -> dict[str, Task[D]]:
        config = self.config.model_copy(update={"seed": seed})
        chosen = config.chosen_variants()
        return {name: self.with_config(variant) for name, variant in chosen.items()}

    def check_identical_start(self, variants: Sequence[Task[D]]) -> StartCheck | None:
        if len(variants) < 2:
            return None
        resolved: list[Any] = [variant.resolve() for variant in variants]
        return same_outputs([variant.outputs_at_start() for variant in resolved])

    def outputs_at_start(self) -> StartOutputs:
        """The outputs before training."""
        data = self.prepare(RunFolder(Path()))
        set_seed(self.config.seed)
        model = self.build_model(data).eval()
        return outputs_at_start(self, model, data.valid, data.tokenizer, trained=False)

    def compare(
        self, runs: Mapping[str, Sequence[RunFolder]], *, over_seeds: bool = False
    ) -> list[VariantScore]:
        draws = self.config.compare.draws
        return compare_variants(self, runs, draws=draws, over_seeds=over_seeds)
