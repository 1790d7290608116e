"""Build the encoders of an attachment, after a check that they fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..encoders import EncoderConfig, RotaryConfig
from ..errors import ArgumentError, SavedError, first_line
from ..room import check_memory
from .layouts import head_size
from .sites import SitePlan

Shapes = Mapping[str, Sequence[int]]
"""Shapes of weights, by name."""


class WeightsMismatch(SavedError):
    """Saved weights do not fit the attachment they were saved with."""


def _check_size(
    config: EncoderConfig, settings: tuple[int, int, list[int]], group: str, shapes: Shapes | None
) -> None:
    """Refuse an encoder that needs too much memory, or whose weights differ in shape from those
    saved, before it is built.
    """
    try:
        with torch.device("meta"):
            weights = {
                f"{group}.{name}": tensor
                for name, tensor in config.build(*settings).state_dict().items()
            }
    except RuntimeError as error:  # sizes overflow
        raise ArgumentError(f"{config!r} cannot be built: {first_line(error)}") from None
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    check_memory(size, f"The weights of {type(config).__name__}", "choose smaller settings", 0.5)
    if shapes is None:
        return
    for name, tensor in weights.items():
        saved = shapes.get(name)
        if saved is None or tuple(saved) != tuple(tensor.shape):
            problem = "is missing" if saved is None else f"has {tuple(saved)}"
            raise WeightsMismatch(
                f"The weights do not fit their description: {name} must have shape "
                f"{tuple(tensor.shape)}, but {problem}."
            )


def groups_of(plan: SitePlan, per_stack: bool) -> dict[str, list[int]]:
    """The sites that each encoder serves: all of them, or those of one stack."""
    if not per_stack:
        return {"all": list(range(len(plan.stack_names)))}
    return {
        name: [i for i, stack in enumerate(plan.stack_names) if stack == name]
        for name in sorted(set(plan.stack_names))
    }


def build_encoders(
    config: EncoderConfig, plan: SitePlan, base: nn.Module, per_stack: bool, shapes: Shapes | None
) -> dict[str, nn.Module]:
    """Build one encoder per group of sites, with the device and dtype of the model.

    Args:
        config: settings of the encoders.
        plan: the sites.
        base: the base model.
        per_stack: one encoder per stack, instead of one for all.
        shapes: shapes of the weights that will be loaded, if any; they must fit.
    """
    if isinstance(config, RotaryConfig):
        return {"all": config.build(1, head_size(base, plan.dim))}
    encoders = {}
    for group, members in groups_of(plan, per_stack).items():
        settings = (len(members), plan.dim, [plan.block_numbers[i] for i in members])
        _check_size(config, settings, group, shapes)
        encoders[group] = config.build(*settings)
    for encoder in encoders.values():
        reference = next(base.parameters())
        encoder.to(reference.device, reference.dtype if reference.is_floating_point() else None)
        for module in encoder.modules():
            module.__dict__["_is_hf_initialized"] = True  # `init_weights` must skip it
    return encoders
