"""Optimiser groups: the law of motion may have a learning rate and a weight decay of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..attachments import attachment
from ..errors import ArgumentError, AttachmentError


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    flow_lr_multiple: float = 1.0,
    flow_weight_decay: float = 0.0,
    freeze_flow: bool = False,
    freeze_base: bool = False,
    required: bool = True,
) -> list[dict[str, Any]]:
    """Groups for an optimiser: the base with and without decay, and the attachment.

    The paper updates its flow models with a larger learning rate (§4.4); `flow_lr_multiple=1` is
    the default because the exact gradient arrives in every step here. Fine-tuning on inputs of many
    tokens may want less: an encoding is an integral of h, so that what a step does to h adds up
    along the input. Biases and normalisation are not decayed, nor are the attachment's weights
    unless asked for: decay pulls a trajectory towards standing still.

    Args:
        model: a model with an attachment.
        lr: learning rate of the base.
        weight_decay: decay of the base's matrices.
        flow_lr_multiple: learning rate of the attachment, in multiples of `lr`.
        flow_weight_decay: decay of the attachment's matrices.
        freeze_flow: train the base only (fine-tuning with frozen dynamics).
        freeze_base: train the attachment only (pretraining of the dynamics).
        required: refuse a model without an attachment.
    """
    made = attachment(model)
    if made is None and required:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    if not flow_lr_multiple > 0:
        raise ArgumentError(
            f"`flow_lr_multiple` must be positive, but is {flow_lr_multiple!r}; freeze_flow=True "
            "freezes it."
        )
    flow = set() if made is None else {id(parameter) for parameter in made.parameters()}
    for parameter in model.parameters():
        if freeze_flow and id(parameter) in flow:
            parameter.requires_grad_(False)
        if freeze_base and id(parameter) not in flow:
            parameter.requires_grad_(False)
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    moving_decayed: list[nn.Parameter] = []
    moving_plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            matrix = parameter.dim() > 1
            if id(parameter) in flow:
                (moving_decayed if matrix else moving_plain).append(parameter)
            else:
                (decayed if matrix else plain).append(parameter)
    groups = [
        {"params": decayed, "lr": lr, "weight_decay": weight_decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
        {"params": moving_decayed, "lr": lr * flow_lr_multiple, "weight_decay": flow_weight_decay},
        {"params": moving_plain, "lr": lr * flow_lr_multiple, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
