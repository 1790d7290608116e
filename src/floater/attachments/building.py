"""The encoders of an attachment, built for the sites of a plan once their size is known to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..encoders import EncoderConfig, RotaryConfig
from ..errors import ArgumentError, SavedError, first_line
from ..room import check_memory
from .layouts import head_size
from .sites import Plan

Shapes = Mapping[str, Sequence[int]]
"""Shapes of weights by name."""


class Misfit(SavedError):
    """Saved weights do not fit the attachment that is made for them."""


def _check_size(
    config: EncoderConfig, settings: tuple[int, int, list[int]], group: str, shapes: Shapes | None
) -> None:
    """Refuse an encoder that needs more memory than there is, or other weights than were saved,
    before it is built.
    """
    try:
        with torch.device("meta"):
            weights = {
                f"{group}.{name}": tensor
                for name, tensor in config.build(*settings).state_dict().items()
            }
    except RuntimeError as error:  # sizes that overflow
        raise ArgumentError(f"{config!r} cannot be built: {first_line(error)}") from None
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    check_memory(size, f"The weights of {type(config).__name__}", "choose smaller settings", 0.5)
    if shapes is None:
        return
    for name, tensor in weights.items():
        found = shapes.get(name)
        if found is None or tuple(found) != tuple(tensor.shape):
            has = "is missing" if found is None else f"has {tuple(found)}"
            raise Misfit(
                f"The weights do not fit their description: {name} must have shape "
                f"{tuple(tensor.shape)}, but {has}."
            )


def groups_of(plan: Plan, per_stack: bool) -> dict[str, list[int]]:
    """The sites that each encoder serves: all of them, or those of one stack."""
    if not per_stack:
        return {"all": list(range(len(plan.owners)))}
    return {
        name: [i for i, owner in enumerate(plan.owners) if owner == name]
        for name in sorted(set(plan.owners))
    }


def build_encoders(
    config: EncoderConfig, plan: Plan, base: nn.Module, per_stack: bool, shapes: Shapes | None
) -> dict[str, nn.Module]:
    """The encoder of each group of sites, on the model's device and in its type.

    Args:
        config: which encoder.
        plan: the sites.
        base: the base model.
        per_stack: one encoder for each stack, instead of one for all.
        shapes: of weights that will be loaded, if any; others than the encoder's are refused.
    """
    if isinstance(config, RotaryConfig):
        return {"all": config.build(1, head_size(base, plan.dim))}
    built = {}
    for group, members in groups_of(plan, per_stack).items():
        settings = (len(members), plan.dim, [plan.numbers[i] for i in members])
        _check_size(config, settings, group, shapes)
        built[group] = config.build(*settings)
    for module in built.values():
        like = next(base.parameters())
        module.to(like.device, like.dtype if like.is_floating_point() else None)
        for part in module.modules():
            part.__dict__["_is_hf_initialized"] = True  # `init_weights` must leave it alone
    return built
