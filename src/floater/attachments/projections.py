"""Projections that add a position-dependent bias inside their matrix product, or rotate its heads.

The classes below replace the class of a layer; its parameters, names and hooks stay.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..encoders.rotary import rotate
from ..errors import LayoutError

HeadRotation = tuple[Tensor, Tensor, tuple[int, ...]]
"""Cosine and sine [(B,) L, 1, head/2], and which thirds of a fused projection they rotate."""


class Slot:
    """What a block passes to one of its projections for the next call, per thread. Empty in copies.

    The bias depends on the position: [L, out], or [B, L, out] where the rows of a batch have
    different positions.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: tuple[Tensor | None, HeadRotation | None] = (None, None)
        # graphs are traced by one thread, and tracing does not support thread-local values

    def put(self, bias: Tensor | None, rotation: HeadRotation | None) -> None:
        """Fill the slot."""
        if torch.compiler.is_compiling():
            self._traced = (bias, rotation)
        else:
            self._threads.value = (bias, rotation)

    def take(self) -> tuple[Tensor | None, HeadRotation | None]:
        """Empty the slot and return what was in it."""
        if torch.compiler.is_compiling():
            value = self._traced
            self._traced = (None, None)
            return value
        value = getattr(self._threads, "value", (None, None))
        self._threads.value = (None, None)
        return value

    def discard(self) -> bool:
        """Empty the slot; return whether there was something in it."""
        bias, rotation = self.take()
        return bias is not None or rotation is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()


class PositionedLinear(nn.Linear):
    """`nn.Linear` whose bias may depend on the position."""

    slot: Slot

    def forward(self, input: Tensor) -> Tensor:
        added, rotation = self.slot.take()
        if added is None and rotation is None:
            return super().forward(input)
        if rotation is not None:
            return _rotate_heads(super().forward(input), *rotation)
        assert added is not None
        if self.bias is not None and _can_fuse(input, self.weight, added):
            return _project(input, self.weight.t(), self.bias, added)
        return _add(super().forward(input), added)


class PositionedConv1D(Conv1D):
    """transformers' `Conv1D` (a linear layer with its weight transposed; GPT-2) whose bias may
    depend on the position.
    """

    slot: Slot

    def forward(self, x: Tensor) -> Tensor:
        added, rotation = self.slot.take()
        if added is None and rotation is None:
            return self._plain_forward(x)
        if rotation is not None:
            return _rotate_heads(self._plain_forward(x), *rotation)
        assert added is not None
        if _can_fuse(x, self.weight, added):
            return _project(x, self.weight, self.bias, added)
        return _add(self._plain_forward(x), added)

    def _plain_forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return out


class AddAfter:
    """Forward hook that adds the encoding to the output of other kinds of projections (e.g.
    quantised ones).
    """

    def __call__(self, module: Any, args: Any, output: Tensor) -> Tensor:
        added, rotation = module.slot.take()
        if rotation is not None:
            return _rotate_heads(output, *rotation)
        return output if added is None else _add(output, added)


_POSITIONED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: PositionedLinear,
    Conv1D: PositionedConv1D,
}
_PLAIN = {positioned: plain for plain, positioned in _POSITIONED.items()}


def underlying(layer: nn.Module) -> nn.Module:
    """The layer inside the wrappers of adapters (e.g. PEFT's LoRA)."""
    while isinstance(inner := getattr(layer, "base_layer", None), nn.Module):
        layer = inner
    return layer


def equip(layer: nn.Module) -> torch.utils.hooks.RemovableHandle | None:
    """Give a layer a slot, in place.

    Returns:
        The handle of the forward hook, for layers that need one.
    """
    layer.slot = Slot()  # type: ignore[assignment]
    if type(layer) in _POSITIONED:
        layer.__class__ = _POSITIONED[type(layer)]
        return None
    return layer.register_forward_hook(AddAfter())


def restore(layer: nn.Module) -> None:
    """Undo :func:`equip`, except for the hook."""
    layer.__class__ = _PLAIN.get(type(layer), type(layer))
    del layer.slot


def out_width(layer: nn.Module, name: str) -> int:
    """Size of a projection's output; `name` is for error messages."""
    width = getattr(layer, "out_features", getattr(layer, "nf", None))
    if not isinstance(width, int):
        raise LayoutError(
            f"Projection {name} must be a linear layer (with `out_features`), but is a "
            f"{type(layer).__name__}."
        )
    return width


def _can_fuse(x: Tensor, weight: Tensor, added: Tensor) -> bool:
    """Whether the fused product is bit-identical to that of the layer: full precision on the
    CPU.
    """
    return (
        x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and x.dtype == weight.dtype == added.dtype
        and x.dtype in (torch.float32, torch.float64)
        and x.dim() == 3
        and x.is_contiguous()
    )


def _project(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor) -> Tensor:
    """x·weight + bias + added. The product accumulates onto the biases, which saves a pass over the
    activations.

    With gradients, the bias is added to all rows at once, so that its gradient is the same sum as
    in the layer itself, to the bit. Graphs do without, because it would fix their lengths.
    """
    batch, length, _ = x.shape
    if added.dim() == 2 and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        rows = (added + bias).repeat(batch, 1)
    else:
        rows = _flatten_rows(added.expand(batch, length, -1) + bias, batch * length)
    return rows.addmm_(x.view(batch * length, -1), weight).view(batch, length, -1)


def _flatten_rows(fresh: Tensor, rows: int) -> Tensor:
    """Reshape a tensor that has no other reference to a matrix, without making it a view.

    Writing into a view would make the backward pass copy the whole gradient, which costs more than
    everything else here.
    """
    if torch.compiler.is_compiling():
        return fresh.view(rows, -1)
    matrix: Tensor = torch.ops.aten._unsafe_view.default(fresh, (rows, fresh.shape[-1]))
    return matrix


def _add(out: Tensor, added: Tensor) -> Tensor:
    return out + added.to(out.device, out.dtype)


def _rotate_heads(out: Tensor, cosine: Tensor, sine: Tensor, thirds: tuple[int, ...]) -> Tensor:
    """Rotate every head of the output, or of some thirds of a fused one."""
    if thirds:
        chunks = list(out.chunk(3, -1))
        for third in thirds:
            chunks[third] = _rotate_heads(chunks[third], cosine, sine, ())
        return torch.cat(chunks, -1)
    cosine, sine = cosine.to(out.device, out.dtype), sine.to(out.device, out.dtype)
    heads = out.unflatten(-1, (-1, 2 * cosine.shape[-1]))
    return rotate(heads, cosine, sine).flatten(-2)
