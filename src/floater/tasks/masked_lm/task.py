"""Masked language modelling on any encoder: its config, loss and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ...config import Config
from ...errors import RunError
from ...files import read_lines
from ...runs.folder import RunFolder
from ...training.run import run
from ...training.settings import Count, NotNegative, Positive
from ..padding import PadRight
from ..tsv import from_hub
from ..understanding.config import FineTuning, TrainedPart, UnderstandingConfig
from ..understanding.models import lacks_head, locate
from ..understanding.problem import Batch, Measure, Predictions, forward
from ..understanding.resampling import ratio
from ..understanding.task import UnderstandingTask
from .text import Blocks, Text, cut, from_wikitext

_VALID_SEED = 987654321  # what is hidden of held-out text: the same in every run


class TextHub(Config):
    """A data set of the hub with a column `text`."""

    name: str = "Salesforce/wikitext"
    config: str = "wikitext-103-v1"
    train: str = "train"
    valid: str = "validation"


class MaskedLMData(Config):
    """The text: files of lines, or a data set of the hub."""

    train: tuple[Path, ...] = ()
    """Text files, plain or .gz."""
    valid: tuple[Path, ...] = ()
    hub: TextHub | None = None
    wikitext: bool = False
    """The lines are WikiText's tokens: undo its marks."""
    apart: bool = False
    """Each line is an example of its own, such as a sentence or a reaction; else the text runs on
    from block to block.
    """
    max_train: Count | None = None
    """Train on the first so many blocks only."""
    max_valid: Count | None = None
    """Measure on the first so many blocks only."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are hidden."""

    @model_validator(mode="after")
    def _somewhere(self) -> MaskedLMData:
        if (self.hub is None) != bool(self.train) or bool(self.train) != bool(self.valid):
            raise ValueError("give either `train` and `valid` (lists of text files) or `hub`")
        return self


class FlowTraining(FineTuning):
    """How to train the encoder alone: one epoch."""

    part: TrainedPart = "flow"
    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.0


class HeadTraining(FlowTraining):
    """How to fit a head: until the held-out loss falls no more."""

    part: TrainedPart = "head"
    epochs: Count = 20
    patience: Count | None = 2
    take: Literal["last", "best"] = "best"


class HeadConfig(Config):
    """How the language-model head is fitted where a checkpoint has none: alone, before anything
    else.
    """

    run: Path | None = None
    """Its run folder, which several runs may share; `head` inside the run's own folder unless
    given.
    """
    training: HeadTraining = HeadTraining()


class MaskedConfig(UnderstandingConfig):
    """One run of masked language modelling; unless told, one epoch of the encoder alone."""

    task: Literal["masked_lm"] = "masked_lm"
    data: MaskedLMData
    max_length: Count = 128
    training: FlowTraining = FlowTraining()
    head: HeadConfig = HeadConfig()

    def variants(self) -> dict[str, UnderstandingConfig]:
        """The base as it is; p(start) alone, with h ≡ 0; the dynamics."""
        return {"base": self._with("nothing").bare(), "start": self._with("start"), "floater": self}

    def _with(self, part: Literal["nothing", "start"]) -> MaskedConfig:
        return self.model_copy(update={"training": self.training.model_copy(update={"part": part})})


class MaskedLMTask(UnderstandingTask[Text, Blocks]):
    """Guess the hidden tokens. The main measure is the loss a hidden token, in nats."""

    auto_class = AutoModelForMaskedLM
    more_is_better = False
    config: MaskedConfig
    config_class = MaskedConfig

    def ready(self, path: Path, console: Console) -> MaskedLMTask:
        """Train a language-model head where the checkpoint has none, once for all runs of it.

        Args:
            path: run folder of the head, unless the config names one.
            console: where to print progress.
        """
        config = self.config
        if not lacks_head(self.auto_class, locate(config.model.name)):
            return self
        folder = config.head.run or path
        changes = {"training": config.head.training, "seed": 0, "dynamics": None}
        head = HeadTask(config.model_copy(update=changes).bare())
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
        """Whether a folder holds this head, finished; data and lengths may differ."""
        folder = RunFolder(path)
        if not folder.started() or not folder.finished():
            return False
        before, now = folder.settings(), self.config.dump()
        return all(before.get(section) == now[section] for section in ("task", "model", "training"))

    @property
    def measures(self) -> dict[str, Measure]:
        return {"loss": ratio(0, 1), "accuracy": ratio(2, 1, 100.0)}

    def prime(self, model: nn.Module, train: Blocks) -> None:
        """Let a new head begin with the frequencies of tokens and logits of deviation about 1, not
        with wild guesses.

        Its bias would need thousands of updates to get there. Square layers begin as the identity.
        """
        embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)()
        if not isinstance(embeddings, nn.Linear):
            return
        inner = {id(module) for module in (*base_of(model).modules(), embeddings)}
        with torch.no_grad():
            if embeddings.bias is not None:
                seen = (
                    torch.from_numpy(train.counts(embeddings.out_features)).to(embeddings.bias) + 1
                )
                embeddings.bias.copy_((seen / seen.sum()).log())
            length = embeddings.weight.norm(dim=1).mean()
            for module in (one for one in model.modules() if id(one) not in inner):
                if isinstance(module, nn.Linear) and module.in_features == module.out_features:
                    nn.init.eye_(module.weight)
                elif isinstance(module, nn.LayerNorm):
                    module.weight.fill_(1 / float(length))

    def splits(self) -> dict[str, Text]:
        where = self.config.data
        if where.hub is not None:
            hub = where.hub
            return {
                name: Text(
                    from_hub(hub.name, hub.config, part)["text"], f"{hub.name} {hub.config} {part}"
                )
                for name, part in (("train", hub.train), ("valid", hub.valid))
            }
        return {"train": _read(where.train), "valid": _read(where.valid)}

    def read(self, path: Path) -> Text:
        return _read((path,))

    def encode(self, split: Text, tokenizer: PreTrainedTokenizerBase, *, training: bool) -> Blocks:
        where = self.config.data
        if where.wikitext:
            split = Text(
                [from_wikitext(line, tokenizer.unk_token or "") for line in split.lines], split.name
            )
        rows = cut(split, tokenizer, self.config.max_length, apart=where.apart)
        most = where.max_train if training else where.max_valid
        return Blocks(
            rows[:most], tokenizer, where.share, self.config.seed if training else _VALID_SEED
        )

    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        return PadRight(tokenizer.pad_token_id)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        hidden = batch["labels"].ne(-100)
        return F.cross_entropy(
            _logits(model, batch, hidden), batch["labels"][hidden], reduction="sum"
        )

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        hidden = batch["labels"].ne(-100)
        logits, wanted = _logits(model, batch, hidden), batch["labels"][hidden]
        owner = hidden.nonzero()[:, 0]
        empty = torch.zeros(len(hidden), dtype=torch.float64, device=logits.device)
        columns = (
            F.cross_entropy(logits, wanted, reduction="none"),
            torch.ones_like(wanted),
            logits.argmax(1).eq(wanted),
        )
        return {
            name: empty.index_add(0, owner, column.to(empty.dtype))
            for name, column in zip(("loss", "hidden", "right"), columns, strict=True)
        }

    def judge(
        self, split: Text, features: Blocks, outputs: Mapping[str, np.ndarray]
    ) -> Predictions:
        table = np.stack([outputs[name] for name in ("loss", "hidden", "right")], 1).astype(
            np.float64
        )
        if not np.isfinite(table).all():
            raise RunError(
                f"The loss on {split.name} must be finite, but is not; did the training diverge? "
                "Lower `lr`."
            )
        return Predictions(
            [dict(zip(("loss", "hidden", "right"), row, strict=True)) for row in table.tolist()],
            table,
        )

    def scores(self, table: np.ndarray) -> dict[str, float]:
        loss, hidden, right = table.sum(0)
        return {
            "loss": loss / hidden,
            "accuracy": 100 * right / hidden,
            "perplexity": math.exp(min(loss / hidden, 700.0)),
        }

    def signature(self, measure: str) -> str:
        return (
            f"{measure}|masked "
            f"lm|hidden:{self.config.data.share}|length:{self.config.max_length}"
            f"|seed:{_VALID_SEED}"
        )


class HeadTask(MaskedLMTask):
    """Train a new language-model head, which needs no other head before it."""

    def ready(self, path: Path, console: Console) -> HeadTask:
        return self


def _read(paths: Sequence[Path]) -> Text:
    return Text([line for path in paths for line in read_lines(path)], " ".join(map(str, paths)))


def _logits(model: nn.Module, batch: Batch, hidden: Tensor) -> Tensor:
    """Logits [hidden tokens, vocabulary]: the head, the most expensive part of a small model, sees
    no other token.
    """
    bare = getattr(model, "module", model)  # wrapped for several processes
    with _handing_on(base_of(bare), hidden):
        logits: Tensor = forward(model, batch).logits
    return logits.squeeze(0).float()


@contextmanager
def _handing_on(base: nn.Module, chosen: Tensor) -> Iterator[None]:
    """Inside, a base model hands only the chosen tokens on to its head, as one row."""

    def pick(module: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[chosen].unsqueeze(0)
        return output

    handle = base.register_forward_hook(pick)
    try:
        yield
    finally:
        handle.remove()
