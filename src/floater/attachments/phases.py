"""The phases of a rotary model: its frequencies, and angles that an encoder adds to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import LayoutError
from .class_swap import ClassSwapMixin, check_class_counts, swap_in, swap_out
from .layouts import Layout

if TYPE_CHECKING:
    from .hooks.carrier import Carrier

_FULL = "full_attention"
"""Type of the blocks that attend to all tokens, in models that have others with windows. Those see
no distance that they were not trained on.
"""
_CHANGING = ("dynamic", "longrope")
"""Rotary positions whose frequencies depend on the length of the input."""


def rotary_modules(base: nn.Module, layout: Layout) -> dict[str, nn.Module]:
    """The modules that compute the angles of a rotary model, by stack."""
    return {
        name: base.get_submodule(f"{stack.path}.{stack.positions}".strip("."))
        for name, stack in layout.stacks.items()
        if stack.positions_kind == "rotary"
    }


def phase_frequencies(base: nn.Module, layout: Layout) -> list[float]:
    """The frequencies of a rotary model, in radians per token, from the fastest to the slowest."""
    modules = rotary_modules(base, layout)
    name = type(base).__name__
    if not modules:
        raise LayoutError(
            f'sites="phases" needs a model with rotary positions that is known by name, but {name} '
            "is none; choose another site."
        )
    (module,) = modules.values()
    types = getattr(module, "layer_types", None)
    if types is not None and _FULL not in types:
        raise LayoutError(
            f"{name} must have blocks that attend to all tokens, but all of them attend to windows,"
            " which see no distance that they were not trained on."
        )
    inverse = getattr(module, _attribute(module, "inv_freq"), None)
    if not isinstance(inverse, Tensor):
        raise LayoutError(
            f"{type(module).__name__} must have the frequencies of the rotary positions "
            "(inv_freq), but has none."
        )
    kind: Any = getattr(module, "rope_type", "default")
    kind = kind.get(_FULL, "default") if isinstance(kind, dict) else kind
    if any(word in str(kind) for word in _CHANGING):
        raise LayoutError(
            f"The rotary positions of {name} must have fixed frequencies, but are of the type "
            f"{kind!r}, whose frequencies depend on the length of the input; load the model with "
            "rope_parameters of the type 'default'."
        )
    return [float(value) for value in inverse.double()]


def _attribute(module: nn.Module, name: str) -> str:
    """The name of an attribute, in models with several types of blocks that of the full ones."""
    prefixed = f"{_FULL}_{name}"
    return prefixed if hasattr(module, prefixed) else name


class _Phased(ClassSwapMixin):
    """Computes cosine and sine as the model does, of angles that encodings were added to."""

    carrier: Carrier

    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        pending = self.carrier.top()
        if pending is None or layer_type not in (None, _FULL):
            arguments = {} if layer_type is None else {"layer_type": layer_type}
            own: tuple[Tensor, Tensor] = super().forward(  # type: ignore[misc]
                x, position_ids, **arguments
            )
            return own
        turned = pending.turned(x)
        module: Any = self
        inverse = getattr(module, _attribute(module, "inv_freq")).to(x.device, torch.float32)
        scale = getattr(module, _attribute(module, "attention_scaling"), 1.0)
        places = position_ids if turned.places is None else turned.places.to(x.device)
        angles = places[..., None].float() * inverse
        angles = angles + turned.phases.to(x.device, torch.float32)
        both = torch.cat((angles, angles), -1)
        scale = scale * turned.scale
        return (both.cos() * scale).to(x.dtype), (both.sin() * scale).to(x.dtype)


def equip_phases(module: nn.Module, carrier: Carrier) -> None:
    """Let the rotary positions of a model take encodings."""
    check_class_counts(module, "with the model's rotary positions")
    swap_in(module, _Phased, carrier)


def restore_phases(module: nn.Module) -> None:
    """Undo :func:`equip_phases`."""
    swap_out(module, _Phased)
