"""The base class of language understanding tasks: fine-tune a pretrained model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, set_seed

from ...attachments import attachment, save_pretrained
from ...files import new_folder, record_hashes
from ...runs.comparison import StartCheck, VariantScore
from ...runs.folder import RunFolder
from ...training.checkpoints import checkpoints, require_checkpoints, state_of, step_of
from ...training.extract_encodings import store_encodings
from ...training.loader import EpochLoader
from ...training.settings import Pace
from ...training.task import FREE_SETTINGS, EvaluationRequest, Task
from ...training.world import ALONE, World
from .batches import LengthBatches
from .config import UnderstandingConfig
from .evaluation import describe, evaluate, evaluate_run
from .models import (
    ATTACHMENT,
    build,
    load_tokenizer,
    load_trained,
    locate,
    parameter_counts,
    resolve,
    select_trained,
)
from .predicting import predict_all
from .problem import Features, Problem, Split
from .variant_scores import StartOutputs, compare_variants, outputs_at_start, same_outputs


@dataclass(frozen=True)
class UnderstandingData:
    """Everything that is read and checked before training starts.

    Attributes:
        tokenizer: the model's.
        base: folder or hub name of the pretrained model.
        splits: the data, by name.
        train, valid: encoded inputs.
    """

    tokenizer: PreTrainedTokenizerBase
    base: str
    splits: Mapping[str, Any]
    train: Any
    valid: Any

    @property
    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """What a run records about each split."""
        return {name: split.fingerprint() for name, split in self.splits.items()}


S = TypeVar("S", bound=Split)
F = TypeVar("F", bound=Features)


class UnderstandingTask(Problem[S, F], Task[UnderstandingData]):
    """Fine-tune a pretrained model, or train its position encoder alone."""

    config: UnderstandingConfig
    config_class: ClassVar[type[UnderstandingConfig]]
    schedule = "linear"
    free_settings = FREE_SETTINGS | {"keep_model", "keep_checkpoints", "threads"}
    evaluation_options = frozenset({"data"})

    @property
    def main(self) -> str:
        return next(iter(self.measures))

    @property
    def model_name(self) -> str:
        return self.config.model.name

    @property
    def trains(self) -> bool:
        return self.config.training.part != "nothing"

    # Before training ------------------------------------------------------------------------------

    def check(self, path: Path) -> None:
        locate(self.config.model.name)

    def check_data(self) -> None:
        self.splits()

    def resolve(self) -> UnderstandingTask[S, F]:
        return self.with_config(resolve(self.config))

    def prepare(self, folder: RunFolder) -> UnderstandingData:
        base = locate(self.config.model.name)
        tokenizer = load_tokenizer(base)
        splits = self.splits()
        return UnderstandingData(
            tokenizer,
            base,
            splits,
            self.encode(splits["train"], tokenizer, training=True),
            self.encode(splits["valid"], tokenizer, training=False),
        )

    def build_model(self, data: UnderstandingData) -> nn.Module:
        model = build(self, data.base)
        if self.config.training.part == "head":
            self.prime(model, data.train)
        select_trained(model, self.config.training.part)
        return model

    def warnings(self, model: nn.Module, data: UnderstandingData) -> Sequence[str]:
        """Warn if trained dynamics are used on longer inputs than they were trained on."""
        if self.config.dynamics is None:
            return ()
        longest = int(data.train.lengths().max())
        trained = RunFolder(self.config.dynamics).facts().get("longest")
        attached = attachment(model)
        if trained is None or trained >= longest or attached is None:
            return ()
        table = attached.site_tables(longest)
        if table is None:
            return ()
        there, here = (float(table[at - 1].norm(dim=-1).mean()) for at in (trained, longest))
        return (
            f"{self.config.dynamics} was trained on inputs of up to {trained} tokens, but these "
            f"have up to {longest}: past {trained} tokens nothing was learned (mean norm of the "
            f"encodings {there:.1f} at token {trained}, {here:.1f} at {longest}); train the "
            "dynamics on inputs as long as these, or lower `max_length`.",
        )

    def facts(self, model: nn.Module, data: UnderstandingData) -> dict[str, Any]:
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

    def pace(self, data: UnderstandingData) -> Pace:
        return self.config.training.pace(len(self._batches(data, ALONE)))

    def loader(self, data: UnderstandingData, world: World) -> EpochLoader:
        collate = self.collate(data.tokenizer)
        return EpochLoader(data.train, self._batches(data, world), collate, self.config.seed)

    def _batches(self, data: UnderstandingData, world: World) -> LengthBatches:
        return LengthBatches(
            data.train.lengths(),
            self.config.training.batch,
            self.config.seed,
            world=world,
            follow=getattr(data.train, "set_epoch", None),
        )

    def loss_function(self) -> Callable[[nn.Module, dict[str, Any]], Tensor]:
        return self.loss

    def measure(self, model: nn.Module, data: UnderstandingData, world: World) -> dict[str, float]:
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
        return load_trained(self, chosen)

    def finish(
        self, folder: RunFolder, data: UnderstandingData, model: nn.Module, console: Console
    ) -> None:
        for name, split in data.splits.items():
            if name != "train":
                scores = evaluate(
                    self, model, split, data.tokenizer, folder, name=name, console=console
                )
                console.print(
                    f"{name}: {describe(scores)}", highlight=False, markup=False, soft_wrap=True
                )
        if self.trains:
            store_encodings(folder, model)
            self._save(folder, model, data.tokenizer)

    def _save(self, folder: RunFolder, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save the model, and the encoder alone, as far as the config asks for them."""
        training = self.config.training
        if training.keep_model:
            with new_folder(folder.model) as temporary:
                if attachment(model) is None:
                    model.save_pretrained(temporary)
                else:
                    save_pretrained(model, temporary)
                tokenizer.save_pretrained(temporary)
                record_hashes(temporary)
        if training.part in ("flow", "start"):
            model.config._name_or_path = self.config.model.name
            with new_folder(folder.path / ATTACHMENT) as temporary:
                save_pretrained(model, temporary, base=False)
                record_hashes(temporary)

    def clean_up(self, folder: RunFolder) -> None:
        if not self.config.training.keep_checkpoints:
            shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def evaluate(self, folder: RunFolder, request: EvaluationRequest, console: Console) -> None:
        """Measure a run on a file, or on its own test sets; optionally compare with another run."""
        evaluate_run(self, folder, request, console)

    # Comparing variants ---------------------------------------------------------------------------

    def seeds(self) -> Sequence[int]:
        return self.config.compare.seeds

    def variants(self, seed: int) -> dict[str, Task[UnderstandingData]]:
        config = self.config.model_copy(update={"seed": seed})
        return {name: self.with_config(variant) for name, variant in config.variants().items()}

    def check_identical_start(self, variants: Sequence[Task[UnderstandingData]]) -> StartCheck:
        resolved: list[Any] = [variant.resolve() for variant in variants]
        return same_outputs([variant.outputs_at_start() for variant in resolved])

    def outputs_at_start(self) -> StartOutputs:
        """The outputs before training, with a new encoder instead of a trained one."""
        fresh = self.with_config(self.config.model_copy(update={"dynamics": None}))
        data = fresh.prepare(RunFolder(Path()))
        set_seed(fresh.config.seed)
        model = fresh.build_model(data).eval()
        trained = self.config.dynamics is not None
        return outputs_at_start(fresh, model, data.valid, data.tokenizer, trained=trained)

    def compare(self, runs: Mapping[str, Sequence[RunFolder]]) -> list[VariantScore]:
        return compare_variants(self, runs, draws=self.config.compare.draws)
