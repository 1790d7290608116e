"""Optimiser groups: the dynamics may have their own learning rate and weight decay."""

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
    required: bool = True,
) -> list[dict[str, Any]]:
    """Groups of trainable parameters for an optimiser: the base with and without decay, and the
    attachment. Call :func:`freeze_flow` first to train the base only.

    The paper updates its flow models with a larger learning rate (§4.4); `flow_lr_multiple=1` is
    the default because the exact gradient arrives in every step here. A flow with `pace="free"`
    may need less on long inputs: an encoding is an integral of h, so the effect of a change of h
    accumulates along the input. Biases and normalisation are not decayed, nor by default the
    attachment's weights: decay pulls a trajectory towards standing still.

    Args:
        model: a model with an attachment.
        lr: learning rate of the base.
        weight_decay: decay of the base's matrices.
        flow_lr_multiple: learning rate of the attachment, in multiples of `lr`.
        flow_weight_decay: decay of the attachment's matrices.
        required: refuse a model without an attachment.
    """
    attached = attachment(model)
    if attached is None and required:
        raise AttachmentError("The model has no attachment; call floater.attach first.")
    if not flow_lr_multiple > 0:
        raise ArgumentError(
            f"`flow_lr_multiple` must be positive, but is {flow_lr_multiple!r}; call "
            "freeze_flow(model) to freeze the attachment."
        )
    flow = set() if attached is None else {id(parameter) for parameter in attached.parameters()}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    flow_decayed: list[nn.Parameter] = []
    flow_plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            matrix = parameter.dim() > 1
            if id(parameter) in flow:
                (flow_decayed if matrix else flow_plain).append(parameter)
            else:
                (decayed if matrix else plain).append(parameter)
    groups = [
        {"params": decayed, "lr": lr, "weight_decay": weight_decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
        {"params": flow_decayed, "lr": lr * flow_lr_multiple, "weight_decay": flow_weight_decay},
        {"params": flow_plain, "lr": lr * flow_lr_multiple, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def freeze_flow(model: nn.Module) -> None:
    """Freeze the attachment of a model, if it has one, to train the base only."""
    attached = attachment(model)
    if attached is not None:
        attached.requires_grad_(False)
