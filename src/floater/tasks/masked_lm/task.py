"""The masked language modelling task: config, loss and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from ...attachments.layouts import base_of
from ...config import Config, Count, NotNegative, Positive
from ...errors import RunError
from ...files import read_lines
from ...runs.folder import RunFolder
from ...training.run import run
from ..tsv import from_hub
from ..understanding.config import FineTuning, TrainedPart, UnderstandingConfig
from ..understanding.models import lacks_head, locate
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.resampling import ratio
from ..understanding.task import UnderstandingTask
from .text import Blocks, Text, cut, from_wikitext

_VALID_SEED = 987654321  # of the masked tokens of the validation set, the same in every run

_COLUMNS = ("loss", "hidden", "right")  # of the table: sums over the masked tokens of a block


class TextHub(Config):
    """A data set on the Hugging Face hub with a column `text`."""

    name: str = "Salesforce/wikitext"
    config: str = "wikitext-103-v1"
    train: str = "train"
    valid: str = "validation"


class MaskedLMData(Config):
    """The text: files of lines, or a data set on the hub."""

    train: tuple[Path, ...] = ()
    """Text files, plain or .gz."""
    valid: tuple[Path, ...] = ()
    hub: TextHub | None = None
    wikitext: bool = False
    """The lines are WikiText's tokens, to be turned back into normal text."""
    apart: bool = False
    """Each line is an example, such as a sentence or a reaction; by default lines are
    concatenated and cut into blocks.
    """
    max_train: Count | None = None
    """Train on the first this many blocks only."""
    max_valid: Count | None = None
    """Evaluate on the first this many blocks only."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are masked."""

    @model_validator(mode="after")
    def _has_one_source(self) -> MaskedLMData:
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


class MaskedConfig(UnderstandingConfig):
    """One run of masked language modelling; by default, one epoch of the encoder alone."""

    task: Literal["masked_lm"] = "masked_lm"
    data: MaskedLMData
    max_length: Count = 128
    training: FlowTraining = FlowTraining()
    head: HeadConfig = HeadConfig()

    def variants(self) -> dict[str, UnderstandingConfig]:
        """The base model, the same with p(start) alone (h ≡ 0), and with the dynamics."""
        return {
            "base": self._with("nothing").without_encoder(),
            "start": self._with("start"),
            "floater": self,
        }

    def _with(self, part: Literal["nothing", "start"]) -> MaskedConfig:
        return self.model_copy(update={"training": self.training.model_copy(update={"part": part})})


class MaskedLMTask(UnderstandingTask[Text, Blocks]):
    """Predict masked tokens. The main measure is the loss per masked token, in nats."""

    auto_class = AutoModelForMaskedLM
    more_is_better = False
    less_is_better = frozenset({"loss", "perplexity"})
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

    @property
    def measures(self) -> dict[str, Measure]:
        return {"loss": ratio(0, 1), "accuracy": ratio(2, 1, 100.0)}

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

    def splits(self) -> dict[str, Text]:
        settings = self.config.data
        hub = settings.hub
        if hub is None:
            return {"train": _read(settings.train), "valid": _read(settings.valid)}
        return {
            name: Text(
                from_hub(hub.name, hub.config, split)["text"], f"{hub.name} {hub.config} {split}"
            )
            for name, split in (("train", hub.train), ("valid", hub.valid))
        }

    def read(self, path: Path) -> Text:
        return _read((path,))

    def encode(self, split: Text, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> Blocks:
        settings = self.config.data
        if settings.wikitext:
            split = Text(
                [from_wikitext(line, tokenizer.unk_token or "") for line in split.lines], split.name
            )
        rows = cut(split, tokenizer, self.config.max_length, apart=settings.apart)
        size = settings.max_train if training else settings.max_valid
        seed = self.config.seed if training else _VALID_SEED
        return Blocks(rows[:size], tokenizer, settings.share, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        masked = batch["labels"].ne(-100)
        return F.cross_entropy(
            _logits(model, batch, masked), batch["labels"][masked], reduction="sum"
        )

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        masked = batch["labels"].ne(-100)
        logits, labels = _logits(model, batch, masked), batch["labels"][masked]
        owner = masked.nonzero()[:, 0]
        zeros = torch.zeros(len(masked), dtype=torch.float64, device=logits.device)
        columns = (
            F.cross_entropy(logits, labels, reduction="none"),
            torch.ones_like(labels),
            logits.argmax(1).eq(labels),
        )
        return {
            name: zeros.index_add(0, owner, column.to(zeros.dtype))
            for name, column in zip(_COLUMNS, columns, strict=True)
        }

    def judge(
        self, split: Text, features: Blocks, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        table = np.stack([outputs[name] for name in _COLUMNS], 1).astype(np.float64)
        if not np.isfinite(table).all():
            raise RunError(
                f"The loss on {split.name} must be finite, but is not; did the training diverge? "
                "Lower `lr`."
            )
        return Predictions([dict(zip(_COLUMNS, row, strict=True)) for row in table.tolist()], table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        loss, masked, right = table.sum(0)
        return {
            "loss": loss / masked,
            "accuracy": 100 * right / masked,
            "perplexity": math.exp(min(loss / masked, 700.0)),
        }

    def signature(self, measure: str) -> str:
        share, length = self.config.data.share, self.config.max_length
        return f"{measure}|masked lm|hidden:{share}|length:{length}|seed:{_VALID_SEED}"


class HeadTask(MaskedLMTask):
    """Train a new language-model head, which needs no other head before it."""

    def prepare_dependencies(self, path: Path, console: Console) -> HeadTask:
        return self


def _read(paths: Sequence[Path]) -> Text:
    return Text([line for path in paths for line in read_lines(path)], " ".join(map(str, paths)))


def _logits(model: nn.Module, batch: Batch, masked: Tensor) -> Tensor:
    """Logits [masked tokens, vocabulary].

    The head, which is expensive in a small model, is only applied to these tokens.
    """
    bare = getattr(model, "module", model)  # DistributedDataParallel wraps it
    with _selected_states(base_of(bare), masked):
        logits: Tensor = forward(model, batch).logits
    return logits.squeeze(0).float()


@contextmanager
def _selected_states(base: nn.Module, chosen: Tensor) -> Iterator[None]:
    """Let a base model pass only the chosen tokens on to its head, as one row."""

    def select(module: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[chosen].unsqueeze(0)
        return output

    handle = base.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()
