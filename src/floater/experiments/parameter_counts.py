"""Numbers of parameters of models, built at full size on the device meta, without memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, RobertaConfig

from ..attachments import attachment
from ..attachments.layouts import base_of
from ..encoders import Flow, Recurrent
from ..errors import ConfigError
from ..runs.results import Cell, Paper, Table
from ..tasks.translation.config import TranslationConfig
from ..tasks.translation.model import (
    MarianMTModel,
    attach_encoder,
    build,
    position_parameters,
)
from ..tasks.understanding.config import UnderstandingPositions
from ..tasks.understanding.models import locate
from ..tasks.understanding.task import UnderstandingTask

ROBERTA_BASE = "FacebookAI/roberta-base"
_ROBERTA_BASE_SIZES: dict[str, Any] = {
    "vocab_size": 50_265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""Used if the hub cannot be reached."""


def base_config(name: str) -> Any:
    """The config of a pretrained model without a download; None if it is not available locally."""
    try:
        return AutoConfig.from_pretrained(
            locate(name), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, ConfigError):
        return RobertaConfig(**_ROBERTA_BASE_SIZES) if name == ROBERTA_BASE else None


def build_pretrained(
    task: UnderstandingTask[Any, Any], positions: UnderstandingPositions
) -> nn.Module | None:
    """Build the model of a task on the device meta; None if its config is not available locally."""
    config = base_config(task.config.model.name)
    if config is None:
        return None
    for key, value in task.head().items():
        setattr(config, key, value)
    with torch.device("meta"):
        model: nn.Module = task.auto_class.from_config(config)
        positions.attach(model)
    return model


def pretrained_sizes(
    tasks: Mapping[str, UnderstandingTask[Any, Any]],
    dynamics: UnderstandingTask[Any, Any],
    title: str,
) -> Table:
    """A table of the parameters of the model of each task.

    Args:
        tasks: by name.
        dynamics: the task that trains the dynamics they start from.
        title: title of the table.
    """
    rows: list[list[Cell]] = []
    for name, task in tasks.items():
        trained = task.config.dynamics is not None
        positions = (dynamics if trained else task).config.positions
        training = task.config.training
        length = (
            f"{training.epochs} epochs"
            if training.updates is None
            else f"{training.updates:,} updates"
        )
        model = build_pretrained(task, positions)
        rows.append(
            [
                name,
                *((None,) * 5 if model is None else _counts(model)),
                f"{length} × {training.batch * training.accumulate}",
            ]
        )
    return Table(
        title=title,
        note=(
            "Built on the device meta, without memory; – if the config of the pretrained model is "
            "not available locally. Of the dynamics: without the initial values p(0), as the paper "
            f"counts. The dynamics are trained first, by {dynamics.config.task} on "
            f"{dynamics.config.model.name}."
        ),
        columns=["task", "size", "base", "head", "for positions", "of the dynamics", "training"],
        rows=rows,
    )


def _counts(model: nn.Module) -> list[Cell]:
    attached, base = attachment(model), base_of(model)
    config: Any = base.config
    positions = 0 if attached is None else attached.num_parameters()
    inside = sum(parameter.numel() for parameter in base.parameters())
    encoder = None if attached is None else attached.encoder
    return [
        f"{config.num_hidden_layers} × {config.hidden_size}",
        inside,
        sum(parameter.numel() for parameter in model.parameters()) - inside - positions,
        positions,
        0 if encoder is None else shared_parameters(encoder),
    ]


def shared_parameters(encoder: nn.Module) -> int:
    """Number of parameters without the initial values p(0), as the paper counts."""
    if isinstance(encoder, Flow):
        return encoder.dynamics_parameters()
    if isinstance(encoder, Recurrent):
        return encoder.cell_parameters()
    return sum(parameter.numel() for parameter in encoder.parameters())


class _VocabularySize(SimpleNamespace):
    """A vocabulary with a size but without entries."""

    def __len__(self) -> int:
        return int(self.size)


def build_translator(config: TranslationConfig) -> MarianMTModel:
    """Build the model of a config on the device meta, without memory."""
    vocabulary: Any = _VocabularySize(size=config.vocabulary.size, pad=0, start=1, end=2)
    with torch.device("meta"):
        model = build(config.model, vocabulary)
        attach_encoder(model, config.positions)
    return model


def translation_sizes(
    configs: Mapping[str, TranslationConfig],
    published: Mapping[str, Paper | None],
    title: str,
    note: str,
) -> Table:
    """A table of the parameters of the model of each config.

    Args:
        configs: by name.
        published: the counts of the paper, by name.
        title: title of the table.
        note: appended to the note of the table.
    """
    rows: list[list[Cell]] = []
    for name, config in configs.items():
        model = build_translator(config)
        attached = attachment(model)
        encoder = None if attached is None or len(attached.encoders) > 1 else attached.encoder
        size = config.model.size()
        training = config.training
        rows.append(
            [
                name,
                f"{size['layers']}+{size['layers']} × {size['dim']}",
                sum(parameter.numel() for parameter in model.parameters()),
                position_parameters(model),
                0 if encoder is None else shared_parameters(encoder),
                published.get(name),
                f"{training.updates:,} × {training.batch_tokens * training.accumulate:,} tokens",
            ]
        )
    return Table(
        title=title,
        note=(
            "Built on the device meta, without memory. Of the dynamics: without the initial values "
            f"p(0), as the paper counts.{' ' if note else ''}{note}"
        ),
        columns=[
            "variant",
            "size",
            "parameters",
            "for positions",
            "of the dynamics",
            "paper, of the dynamics",
            "updates",
        ],
        rows=rows,
    )
