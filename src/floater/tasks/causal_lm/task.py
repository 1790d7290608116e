"""The causal language modelling task: config, data and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from ...config import Count
from ...errors import ConfigError
from ..language_model.config import LanguageModelConfig
from ..language_model.task import LanguageModelTask
from ..language_model.text import Text
from ..padding import PadRight
from ..understanding.models import load_and_find_head, locate
from ..understanding.problem import Batch, forward
from .sequences import Sequences, sequences

_LEAST = 4
"""Tokens of an input for each of its parts, on average."""


class CausalConfig(LanguageModelConfig):
    """One run of causal language modelling; by default, one epoch of the encoder alone."""

    task: Literal["causal_lm"] = "causal_lm"
    max_length: Count = 256
    skips: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of places where an input of training skips tokens: it consists of `max_length` tokens
    out of `valid_length`, each at its own position. So short inputs have the distances of long
    ones, and every token stands as far from the others as in the text.
    """

    @model_validator(mode="after")
    def _has_tokens_to_skip(self) -> Self:
        if self.skips and (self.valid_length or 0) <= self.max_length:
            raise ValueError(
                f"`skips` needs a `valid_length` above `max_length`, {self.max_length}, but that "
                f"is {self.valid_length}"
            )
        if self.skips and self.max_length < _LEAST * (self.skips + 1):
            raise ValueError(
                f"`max_length` must be at least {_LEAST} tokens for each of the {self.skips + 1} "
                f"parts that `skips` makes, but is {self.max_length}"
            )
        if self.skips and self.positions.jitter is not None and self.positions.jitter.gaps:
            raise ValueError("`skips` and `gaps` of a jitter exclude each other; remove one")
        return self


class CausalLMTask(LanguageModelTask[Sequences]):
    """Predict the next token. The main measure is the loss per token, in nats."""

    auto_class = AutoModelForCausalLM
    columns = ("loss", "tokens", "right")
    ahead = 1
    needs_padding_token = False
    config: CausalConfig
    config_class = CausalConfig

    def prepare_dependencies(self, path: Path, console: Console) -> CausalLMTask:
        """Refuse a model without a trained head, and one that sees the tokens to predict."""
        name = self.config.model.name
        model, has_head = load_and_find_head(self.auto_class, locate(name))
        if not has_head:
            raise ConfigError(
                f"`name` of `model` must be a causal language model with its head, but {name} has "
                "no weights for the head."
            )
        if not _is_causal(model.eval()):
            raise ConfigError(
                f"`name` of `model` must be a causal language model, but {name} sees the tokens "
                "that it predicts; use the task masked_lm for an encoder."
            )
        return self

    def encode(
        self, split: Text, tokenizer: PreTrainedTokenizerBase, *, training: bool
    ) -> Sequences:
        config = self.config
        skipping = training and config.skips > 0
        return sequences(
            self.normal(split, tokenizer),
            tokenizer,
            self.length(training=training and not skipping),
            apart=config.data.apart,
            most=self.limit(training=training),
            window=config.max_length if skipping else None,
            skips=config.skips,
            seed=config.seed,
        )

    def unknown_word(self, tokenizer: PreTrainedTokenizerBase) -> str:
        # Models such as GPT-2 use the end of a document as their unknown token.
        return ""

    def collate(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Any]], Batch]:
        # Padding follows all tokens and has no label, so that no prediction depends on its number.
        return PadRight(tokenizer.pad_token_id or 0)

    def targets(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        following = F.pad(labels[:, 1:], (0, 1), value=-100)
        chosen = following.ne(-100)
        return chosen, following[chosen]

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        settings: dict[str, Any] = {**batch, "use_cache": False}
        return forward(model, settings)

    def signature(self, measure: str, split: object) -> str:
        text = "lines apart" if self.config.data.apart else "packed"
        return f"{measure}|causal lm|{text}|length:{self.length(training=False)}"


@torch.no_grad()
def _is_causal(model: Any) -> bool:
    """Whether the prediction after a token does not depend on the tokens that follow."""
    inputs = torch.tensor([[0, 1], [0, 2]], device=model.device)
    first, other = model(input_ids=inputs, use_cache=False).logits[:, 0]
    return bool(torch.allclose(first, other, rtol=1e-4, atol=1e-4))
