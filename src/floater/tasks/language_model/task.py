"""The base class of tasks on plain text: predict tokens; loss, accuracy and perplexity."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from ...attachments.layouts import base_of
from ...encoders import EncoderConfig, PhaseFlowConfig, TableFlowConfig
from ...errors import RunError
from ...runs.comparison import StartCheck
from ...training.task import Task
from ..tsv import from_hub
from ..understanding.models import check_lengths
from ..understanding.problem import Batch, Features, Measure, Predictions, forward
from ..understanding.resampling import ratio
from ..understanding.task import UnderstandingTask
from .config import LanguageModelConfig
from .text import ChangedLines, Text, from_wikitext, read_text

B = TypeVar("B", bound=Features)


class LanguageModelTask(UnderstandingTask[Text, B]):
    """Predict tokens of a text. The main measure is the loss per predicted token, in nats."""

    more_is_better = False
    config: LanguageModelConfig
    columns: ClassVar[tuple[str, str, str]]
    """Names of the sums over the predicted tokens of a block: loss, number, predicted rightly."""
    ahead: ClassVar[int] = 0
    """How many positions ahead of a hidden state the token is that it predicts."""

    @abstractmethod
    def targets(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Which hidden states [batch, length] predict a token, and the tokens [predictions]."""

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """The model's outputs for a batch without labels."""
        return forward(model, batch)

    @property
    def less_is_better(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"loss", "perplexity", *(f"loss {name}" for name in self._bins())})

    @property
    def measures(self) -> dict[str, Measure]:
        by_bin = {
            f"loss {name}": ratio(column, column + 1)
            for name, column in zip(self._bins(), count(len(self.columns), 2), strict=False)
        }
        return {"loss": ratio(0, 1), "accuracy": ratio(2, 1, 100.0), **by_bin}

    def _bins(self) -> list[str]:
        return self.config.bin_names() if self.config.bins else []

    def length(self, *, training: bool) -> int:
        """Tokens per block."""
        longest = self.config.max_length
        return longest if training else self.config.valid_length or longest

    def check_identical_start(self, variants: Sequence[Task[Any]]) -> StartCheck | None:
        """Leave out fixed scalings, which differ by intention."""
        free = [
            variant
            for variant in variants
            if not isinstance(encoder := _encoder_of(variant), PhaseFlowConfig | TableFlowConfig)
            or encoder.scaling in ("none", self._table_scaling())
        ]
        return super().check_identical_start(free)

    def _table_scaling(self) -> str | None:
        """Where a longer table starts, if there is one."""
        encoder = self.config.positions.encoder
        return encoder.scaling if isinstance(encoder, TableFlowConfig) else None

    def check(self, path: Path) -> None:
        """Refuse held-out inputs that the model has no positions for."""
        super().check(path)
        if self.config.valid_length is not None:  # `max_length` is lowered where it must be
            check_lengths(self.config, {"`valid_length`": self.config.valid_length})

    def splits(self) -> dict[str, Text]:
        settings = self.config.data
        hub = settings.hub
        if hub is None:
            return {"train": read_text(settings.train), "valid": read_text(settings.valid)}
        return {
            name: Text(
                from_hub(hub.name, hub.config, split)["text"], f"{hub.name} {hub.config} {split}"
            )
            for name, split in (("train", hub.train), ("valid", hub.valid))
        }

    def read(self, path: Path) -> Text:
        return read_text((path,))

    def normal(self, split: Text, tokenizer: PreTrainedTokenizerBase) -> Text:
        """The text without the markup of WikiText."""
        if not self.config.data.wikitext:
            return split
        unknown = self.unknown_word(tokenizer)
        change = partial(from_wikitext, unknown=unknown)
        return Text(ChangedLines(split.lines, change), split.name)

    def unknown_word(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """What stands for WikiText's unknown words; "" leaves them out."""
        return tokenizer.unk_token or ""

    def limit(self, *, training: bool) -> int | None:
        """How many blocks to use."""
        settings = self.config.data
        return settings.max_train if training else settings.max_valid

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        chosen, tokens = self.targets(batch["labels"])
        return F.cross_entropy(self._logits(model, batch, chosen), tokens, reduction="sum")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        chosen, tokens = self.targets(batch["labels"])
        logits = self._logits(model, batch, chosen)
        owner, place = chosen.nonzero().unbind(1)
        zeros = torch.zeros(len(chosen), dtype=torch.float64, device=logits.device)
        loss = F.cross_entropy(logits, tokens, reduction="none")
        columns = [loss, torch.ones_like(tokens), logits.argmax(1).eq(tokens)]
        edges = torch.tensor(self.config.bins, device=place.device)
        bins = torch.bucketize(place + self.ahead, edges, right=True)
        for number, _ in enumerate(self._bins()):
            columns += [loss * (bins == number), bins == number]
        return {
            name: zeros.index_add(0, owner, column.to(zeros.dtype))
            for name, column in zip(self._columns(), columns, strict=True)
        }

    def _columns(self) -> list[str]:
        """Names of all columns of a table, with loss and number of tokens in each bin."""
        by_bin = [f"{name} {bin_}" for bin_ in self._bins() for name in self.columns[:2]]
        return [*self.columns, *by_bin]

    def judge(self, split: Text, features: B, outputs: Mapping[str, np.ndarray]) -> Predictions:
        names = self._columns()
        table = np.stack([outputs[name] for name in names], 1).astype(np.float64)
        if not np.isfinite(table).all():
            raise RunError(
                f"The loss on {split.name} must be finite, but is not; did the training diverge? "
                "Lower `lr`."
            )
        rows = [dict(zip(names, row, strict=True)) for row in table.tolist()]
        return Predictions(rows, table)

    def scores(self, table: np.ndarray) -> dict[str, float]:
        loss, predicted, right, *by_bin = table.sum(0)
        return {
            "loss": loss / predicted,
            "accuracy": 100 * right / predicted,
            "perplexity": math.exp(min(loss / predicted, 700.0)),
            **{
                f"loss {name}": own / tokens
                for name, own, tokens in zip(self._bins(), by_bin[::2], by_bin[1::2], strict=True)
                if tokens
            },
        }

    def _logits(self, model: nn.Module, batch: Batch, chosen: Tensor) -> Tensor:
        """Logits [predictions, vocabulary].

        The head, which is expensive in a small model, is only applied to the chosen states.
        """
        bare = getattr(model, "module", model)  # DistributedDataParallel wraps it
        with _selected_states(base_of(bare), chosen) as selected:
            logits: Tensor = self.outputs(model, batch).logits
        return (logits.squeeze(0) if selected else logits[chosen]).float()


def _encoder_of(task: Task[Any]) -> EncoderConfig | None:
    assert isinstance(task.config, LanguageModelConfig)
    return task.config.positions.encoder


@contextmanager
def _selected_states(base: nn.Module, chosen: Tensor) -> Iterator[list[nn.Module]]:
    """Let a base model pass only the chosen tokens on to its head, as one row.

    Args:
        base: the base model.
        chosen: which tokens [batch, length].

    Yields:
        A list that stays empty if the head does not take its inputs from the base model (OPT's
        takes them from a part of it).
    """
    selected: list[nn.Module] = []

    def select(module: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[chosen].unsqueeze(0)
        selected.append(module)
        return output

    handle = base.register_forward_hook(select)
    try:
        yield selected
    finally:
        handle.remove()
