"""Pretrained models as far as they can be checked without their weights: built at full size,
without memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, RobertaConfig

from ..attachments import attach, attachment
from ..attachments.layouts import base_of
from ..encoders import Encoder
from ..errors import ConfigError
from ..runs.results import Cell, Table
from ..tasks.understanding.commands import Understanding
from ..tasks.understanding.config import PositionsConfig
from ..tasks.understanding.models import locate
from .capabilities import shared_parameters

ROBERTA_BASE = "FacebookAI/roberta-base"
_PUBLISHED: dict[str, Any] = {
    **{
        "vocab_size": 50_265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    **{"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
}
"""Sizes of RoBERTa-base, for where the hub is out of reach."""


def base_config(name: str) -> Any:
    """The config of a pretrained model, without a download; None where it is not at hand."""
    try:
        return AutoConfig.from_pretrained(
            locate(name), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, ConfigError):
        return RobertaConfig(**_PUBLISHED) if name == ROBERTA_BASE else None


def build_empty(task: Understanding, positions: PositionsConfig) -> nn.Module | None:
    """The model of a task on the device meta, with an encoder; None where the config of its base is
    not at hand.
    """
    config = base_config(task.config.model.name)
    if config is None:
        return None
    problem = task.kind(task.config)
    for key, value in problem.head().items():
        setattr(config, key, value)
    with torch.device("meta"):
        model: nn.Module = problem.auto_class.from_config(config)
        if positions.encoder is not None:
            attach(model, positions.encoder, sites=positions.sites, positions=positions.own)
    return model


def sizes(tasks: Mapping[str, Understanding], law: Understanding, title: str) -> Table:
    """Parameters of every task's model, in parts.

    Args:
        tasks: by name.
        law: what trains the law of motion that they start from.
        title: of the table.
    """
    rows: list[list[Cell]] = []
    for name, task in tasks.items():
        placed = law.config.positions if task.config.dynamics is not None else task.config.positions
        training = task.config.training
        length = (
            f"{training.epochs} epochs"
            if training.updates is None
            else f"{training.updates:,} updates"
        )
        model = build_empty(task, placed)
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
            "Built on the device meta: all shapes, no memory; – where the config of the base is "
            "not at hand. Of the law: without starting points, as the paper counts. The law is "
            f"trained first by {law.config.task} on {law.config.model.name}."
        ),
        columns=["task", "size", "base", "head", "for positions", "of the law", "training"],
        rows=rows,
    )


def _counts(model: nn.Module) -> list[Cell]:
    made, base = attachment(model), base_of(model)
    config: Any = base.config
    positions = 0 if made is None else made.num_parameters()
    inside = sum(parameter.numel() for parameter in base.parameters())
    encoder = None if made is None else made.encoder
    return [
        f"{config.num_hidden_layers} × {config.hidden_size}",
        inside,
        sum(parameter.numel() for parameter in model.parameters()) - inside - positions,
        positions,
        shared_parameters(encoder) if isinstance(encoder, Encoder) else 0,
    ]
