"""PEFT: the copy of an attachment that it trains, and adapters that are incompatible with one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..errors import AttachmentError
from .projections import underlying

_SCALING_ADAPTERS = ("DoRA", "IA3", "BOFT")
"""Adapters that scale or rotate the output of a projection."""


def active_module(module: object) -> object:
    """The copy of a module that PEFT trains at present, if PEFT wraps it (`modules_to_save`); else
    the module itself.
    """
    wrapper: Any = module
    original = getattr(module, "__dict__", {}).get("_modules", {}).get("original_module")
    if original is None or not hasattr(wrapper, "modules_to_save"):
        return module
    active = [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    return (
        original if wrapper.disable_adapters or not active else wrapper.modules_to_save[active[0]]
    )


def inner_model(model: nn.Module) -> nn.Module:
    """The model inside a PeftModel; any other model itself."""
    get: Any = getattr(model, "get_base_model", None)
    inner = get() if hasattr(model, "peft_config") and callable(get) else model
    return inner if isinstance(inner, nn.Module) else model


def check_adapters(
    model: nn.Module, projections: Iterable[nn.Module], rotated: Iterable[nn.Module]
) -> None:
    """Refuse adapters that scale the output of the projections: they scale the encoding too, but
    their merged weights would not. Refuse any around projections that are rotated: what they add
    would not be rotated, but their merged weights would.
    """
    configs = getattr(model, "peft_config", None)
    if isinstance(configs, dict) and configs and _wraps_any(model, rotated):
        raise AttachmentError(
            "A rotary encoder rotates the output of q and k, but not what an adapter around them "
            "adds to it, while its merged weights would be rotated; merge the adapter first, or "
            "exclude q and k from it."
        )
    for config in configs.values() if isinstance(configs, dict) else ():
        name = str(getattr(config.peft_type, "value", config.peft_type))
        name = "DoRA" if getattr(config, "use_dora", False) else name
        if name in _SCALING_ADAPTERS and _wraps_any(model, projections):
            raise AttachmentError(
                f"{name} scales the output of projections, including the encoding, but its merged "
                "weights would not; use LoRA (or another adapter that adds to the output), or "
                "exclude the attachment's projections."
            )


def _wraps_any(model: nn.Module, projections: Iterable[nn.Module]) -> bool:
    """Whether an adapter wraps one of the projections."""
    ids = {id(layer) for layer in projections}
    return any(
        underlying(module) is not module and id(underlying(module)) in ids
        for module in model.modules()
    )
