"""PEFT: which copy of an attachment it trains, and which of its adapters do not go with one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..errors import AttachmentError
from .projections import underlying

_SCALING = ("DoRA", "IA3", "BOFT")
"""Adapters that scale or turn what a projection gives."""


def active_module(module: object) -> object:
    """A module as it is, or the copy of it that PEFT trains at present where it is wrapped to be
    trained (`modules_to_save`).
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
    """The model that a PeftModel is wrapped around; any other as it is."""
    get: Any = getattr(model, "get_base_model", None)
    found = get() if hasattr(model, "peft_config") and callable(get) else model
    return found if isinstance(found, nn.Module) else model


def check_adapters(model: nn.Module, projections: Iterable[nn.Module]) -> None:
    """Refuse adapters that scale what the projections give: their merged weights would leave the
    encoding as it is.
    """
    kinds = getattr(model, "peft_config", None)
    for config in kinds.values() if isinstance(kinds, dict) else ():
        name = str(getattr(config.peft_type, "value", config.peft_type))
        name = "DoRA" if getattr(config, "use_dora", False) else name
        if name in _SCALING and _wrapped(model, projections):
            raise AttachmentError(
                f"{name} scales what projections give, the encoding included, which its merged "
                "weights would not do; use LoRA (or another adapter that adds to them), or leave "
                "the attachment's projections out of it."
            )


def _wrapped(model: nn.Module, projections: Iterable[nn.Module]) -> bool:
    """Whether an adapter is wrapped around one of the projections."""
    ours = {id(layer) for layer in projections}
    return any(
        underlying(module) is not module and id(underlying(module)) in ours
        for module in model.modules()
    )
