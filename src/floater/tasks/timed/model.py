"""The body of tasks with real-valued times: a Transformer with attached positions only."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedConfig, PreTrainedModel

from ...attachments import Attachment, attachment
from ...errors import RunError
from ...files import check_hashes, reading
from ...runs.checked_json import read_checked
from ...times import Clock
from .config import BodyConfig, TimedConfig, TimedPositions

_AGAIN = "restore a copy, or train again."


class TimedModelConfig(PreTrainedConfig):
    """What `config.json` of a trained model holds: everything that is needed to build it again.

    Attributes:
        body: settings of the body (`BodyConfig`).
        positions: settings of the attachment (`TimedPositions`).
        clock: settings of the clock (`Clock`), with the unit of the raw times.
        prepared: what the task measured on its training data, such as means and names.
    """

    model_type = "floater_timed"

    def __init__(
        self,
        body: dict[str, Any] | None = None,
        positions: dict[str, Any] | None = None,
        clock: dict[str, Any] | None = None,
        prepared: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.body, self.positions = body or {}, positions or {}
        self.clock, self.prepared = clock or {}, prepared or {}
        super().__init__(**settings)

    @classmethod
    def of(cls, config: TimedConfig, prepared: dict[str, Any]) -> Self:
        """The description of a new model.

        Args:
            config: settings of the run.
            prepared: what the task measured on its training data; `span`, the largest time, is what
                a learned clock of time reaches to.
        """
        return cls(
            body=config.model.model_dump(mode="json"),
            positions=config.positions.dump(),
            clock=config.clock.model_dump(mode="json"),
            prepared=prepared,
        )


class TimedModel(PreTrainedModel):
    """A Transformer over tokens that have real-valued times.

    A task derives from it, adds what makes tokens and predictions, calls `finish_building` at the
    end of its constructor, and `hidden` in its forward.

    Attributes:
        body: BERT's architecture without any positions of its own.
        clock: the learned part of the clock, or None.
        on_indices: whether tokens stand at i·Δ instead of at their times.
    """

    config_class = TimedModelConfig
    base_model_prefix = ""
    causal = False
    """Whether a token sees only itself and those before it."""
    positions_class: ClassVar[type[TimedPositions]] = TimedPositions
    """The class of the settings in `config.positions`."""

    def __init__(self, config: TimedModelConfig) -> None:
        super().__init__(config)
        body = BodyConfig(**config.body)
        settings = BertConfig(
            vocab_size=1,
            hidden_size=body.size("dim"),
            num_hidden_layers=body.size("layers"),
            num_attention_heads=body.size("heads"),
            intermediate_size=body.size("feed_forward"),
            hidden_dropout_prob=body.dropout,
            attention_probs_dropout_prob=body.dropout,
            max_position_embeddings=1,
            type_vocab_size=1,
            is_decoder=self.causal,
            use_cache=False,
        )
        self.body = BertModel(settings, add_pooling_layer=False)
        self.dim = body.size("dim")
        self._positions = self.positions_class(**config.positions)
        self.on_indices = self._positions.times == "index"
        self.clock: nn.Module | None = None

    def finish_building(self) -> None:
        """Initialise all weights, then add the clock and the attachment."""
        self.post_init()  # type: ignore[no-untyped-call]
        clock = Clock(**self.config.clock)
        self.clock = clock.build(self.dim, float(self.config.prepared.get("span", 1.0)))
        self._positions.attach(self.body)

    @property
    def floater(self) -> Attachment | None:
        """The attachment; `floater.attachment(model)` finds it."""
        return attachment(self.body)

    def hidden(
        self, embeds: Tensor, times: Tensor, attention_mask: Tensor, is_token: Tensor | None = None
    ) -> Tensor:
        """Hidden states [batch, length, dim] of tokens.

        Args:
            embeds: what the tokens are, [batch, length, dim].
            times: their times of the clock, float64 [batch, length]; any for padding, but ≥ 0.
            attention_mask: which tokens the others see, [batch, length].
            is_token: which are tokens, seen or not; default: those that are seen.
        """
        attached = self.floater
        assert attached is not None
        at: Any = nullcontext()
        if not self.on_indices:
            if self.clock is not None:
                seen = attention_mask.bool() if is_token is None else is_token
                times = self.clock(times, embeds, seen)
            at = attached.at(times)
        with at:
            states: Tensor = self.body(
                inputs_embeds=embeds, attention_mask=attention_mask
            ).last_hidden_state
        return states


def load_timed(model_class: type[TimedModel], path: Path, clock: Clock) -> TimedModel:
    """The model in a folder, in eval mode.

    Args:
        model_class: the task's class.
        path: folder of a finished model or a checkpoint.
        clock: that of the run; a model with another one is refused.
    """
    if not (path / "config.json").is_file():
        raise RunError(f"{path} must hold a trained model, but does not; was the run finished?")
    check_hashes(path, RunError, _AGAIN)
    settings = read_checked(path / "config.json")
    names = settings.get("architectures")
    if names != [model_class.__name__]:
        raise RunError(
            f"{path} must hold a {model_class.__name__}, but holds {names}: the weights of another "
            "task."
        )
    with reading(path, RunError, f"it is damaged: {_AGAIN}"):
        config = TimedModelConfig(
            **{name: settings[name] for name in ("body", "positions", "clock", "prepared")}
        )
        theirs = Clock(**config.clock)
    if theirs != clock:
        raise RunError(
            f"{path} must have the clock of the run ({_brief(clock)}), but has another one "
            f"({_brief(theirs)}); a model works with the clock that it was trained with only."
        )
    with reading(path, RunError, f"it is damaged: {_AGAIN}"):
        model = model_class(config)
        model.load_state_dict(load_file(path / "model.safetensors"))
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            raise RunError(
                f"{path} must hold finite weights, but {name} is not; train again, with a lower "
                "`training.lr`."
            )
    nn.Module.eval(model)
    return model


def _brief(clock: Clock) -> str:
    return ", ".join(f"{name} {value}" for name, value in clock.model_dump().items() if value)
