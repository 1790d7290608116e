"""The masked language modelling task: config, loss and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from ...attachments.layouts import base_of
from ...config import Config, Count
from ...runs.folder import RunFolder
from ...training.run import run
from ..language_model.config import FlowTraining, LanguageModelConfig, TextData
from ..language_model.task import LanguageModelTask
from ..language_model.text import Text
from ..understanding.config import TrainedPart
from ..understanding.models import lacks_head, locate
from .blocks import Blocks, cut

_VALID_SEED = 987654321  # of the masked tokens of the validation set, the same in every run


class MaskedLMData(TextData):
    """The text, and how much of it is masked."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are masked."""


class HeadTraining(FlowTraining):
    """How to train a head: until the validation loss no longer falls."""

    part: TrainedPart = "head"
    epochs: Count = 20
    patience: Count | None = 2
    take: Literal["last", "best"] = "best"


class HeadConfig(Config):
    """How the language-model head is trained if the checkpoint has none: alone, before anything
    else.
    """

    run: Path | None = None
    """Its run folder, which several runs may share; default: `head` inside the run folder."""
    training: HeadTraining = HeadTraining()


class MaskedConfig(LanguageModelConfig):
    """One run of masked language modelling; by default, one epoch of the encoder alone."""

    task: Literal["masked_lm"] = "masked_lm"
    data: MaskedLMData
    head: HeadConfig = HeadConfig()


class MaskedLMTask(LanguageModelTask[Blocks]):
    """Predict masked tokens. The main measure is the loss per masked token, in nats."""

    auto_class = AutoModelForMaskedLM
    columns = ("loss", "hidden", "right")
    config: MaskedConfig
    config_class = MaskedConfig

    def prepare_dependencies(self, path: Path, console: Console) -> MaskedLMTask:
        """Train a language-model head if the checkpoint has none, once for all runs that use it.

        Args:
            path: run folder of the head if the config names none.
            console: where to print progress.
        """
        config = self.config
        if not lacks_head(self.auto_class, locate(config.model.name)):
            return self
        folder = config.head.run or path
        changes = {"training": config.head.training, "seed": 0, "dynamics": None}
        head = HeadTask(config.model_copy(update=changes).without_encoder())
        trained = head._is_trained(folder)
        console.print(
            f"{config.model.name} has no language-model head: "
            f"{'using the one' if trained else 'training one'} in {folder}",
            highlight=False,
            markup=False,
        )
        if not trained:
            run(head, folder, resume=folder.exists(), console=console)
        base = config.model.model_copy(update={"name": str(folder / "model")})
        return MaskedLMTask(config.model_copy(update={"model": base}))

    def _is_trained(self, path: Path) -> bool:
        """Whether a folder holds this head, finished; data and `max_length` may differ."""
        folder = RunFolder(path)
        if not folder.started() or not folder.finished():
            return False
        before, now = folder.settings(), self.config.dump()
        return all(before.get(section) == now[section] for section in ("task", "model", "training"))

    def prime(self, model: nn.Module, train: Blocks) -> None:
        """Initialise a new head with the frequencies of tokens and logits of deviation about 1.

        Its bias alone would need thousands of updates to get there. Square layers start as the
        identity.
        """
        embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)()
        if not isinstance(embeddings, nn.Linear):
            return
        inner = {id(module) for module in (*base_of(model).modules(), embeddings)}
        with torch.no_grad():
            if embeddings.bias is not None:
                counts = torch.from_numpy(train.counts(embeddings.out_features))
                smoothed = counts.to(embeddings.bias) + 1
                embeddings.bias.copy_((smoothed / smoothed.sum()).log())
            norm = embeddings.weight.norm(dim=1).mean()
            for module in model.modules():
                if id(module) in inner:
                    continue
                if isinstance(module, nn.Linear) and module.in_features == module.out_features:
                    nn.init.eye_(module.weight)
                elif isinstance(module, nn.LayerNorm):
                    module.weight.fill_(1 / float(norm))

    def encode(self, split: Text, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> Blocks:
        settings = self.config.data
        text = self.normal(split, tokenizer)
        rows = cut(
            text,
            tokenizer,
            self.length(training=training),
            apart=settings.apart,
            most=self.limit(training=training),
        )
        seed = self.config.seed if training else _VALID_SEED
        return Blocks(rows, tokenizer, settings.share, seed)

    def targets(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        masked = labels.ne(-100)
        return masked, labels[masked]

    def signature(self, measure: str, split: object) -> str:
        share, length = self.config.data.share, self.length(training=False)
        return f"{measure}|masked lm|hidden:{share}|length:{length}|seed:{_VALID_SEED}"


class HeadTask(MaskedLMTask):
    """Train a new language-model head, which needs no other head before it."""

    def prepare_dependencies(self, path: Path, console: Console) -> HeadTask:
        return self
