"""An item as far as it can be checked without training: its configs resolve and its models build,
at full size, without memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..attachments import attachment
from ..encoders import Encoder
from ..runs.results import Cell, Results, Table
from ..tasks.translation.config import TranslationConfig
from ..tasks.translation.model import MarianMTModel, build, position, position_parameters
from .base import Order, Training
from .capabilities import shared_parameters
from .tables import paper


class _Entries(SimpleNamespace):
    """A vocabulary that has a size, and no words yet."""

    def __len__(self) -> int:
        return int(self.size)


def build_empty(config: TranslationConfig) -> MarianMTModel:
    """The model of a config on the device meta: every shape, and no memory."""
    words: Any = _Entries(size=config.vocabulary.size, pad=0, start=1, end=2)
    with torch.device("meta"):
        model = build(config.model, words)
        position(model, config.positions)
    return model


def check(item: Training, order: Order) -> Results:
    """Resolve every config of an item and build every model, and count parameters."""
    rows: list[list[Cell]] = []
    told = {arm.name: paper(arm, "parameters") for arm in item.arms}
    for name, config in item.configs(order.scale, order).items():
        model = build_empty(config)
        made = attachment(model)
        encoder = None if made is None or len(made.encoders) > 1 else made.encoder
        law = shared_parameters(encoder) if isinstance(encoder, Encoder) else 0
        size = config.model.size()
        training = config.training
        rows.append(
            [
                name,
                f"{size['layers']}+{size['layers']} × {size['dim']}",
                sum(parameter.numel() for parameter in model.parameters()),
                position_parameters(model),
                law,
                told.get(name),
                f"{training.updates:,} × {training.batch_tokens * training.accumulate:,} tokens",
            ]
        )
    left = item.left_out(order)
    table = Table(
        title=f"{item.title}, scale {order.scale}: checked, not trained",
        note=(
            "Built on the device meta: all shapes, no memory. Of the law: without starting points, "
            f"as the paper counts.{' ' if left else ''}{left}"
        ),
        columns=[
            "arm",
            "size",
            "parameters",
            "for positions",
            "of the law",
            "paper, of the law",
            "updates",
        ],
        rows=rows,
    )
    return Results(item=item.name, scale=order.scale, title=item.title, tables=[table])
