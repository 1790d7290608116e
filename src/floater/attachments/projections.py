"""Projections that add a position-dependent bias inside their one matrix product.

The classes below take the place of a layer's own class; parameters, names and hooks stay what they
were.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..errors import LayoutError

Turned = tuple[Tensor, Tensor, tuple[int, ...]]
"""Cosine and sine [(B,) L, 1, head/2], and which thirds of a fused projection they turn."""


class Slot:
    """What the block in front hands to a projection for the next call, in the same thread. Empty in
    copies.

    `added` is a bias by position: [L, out], or [B, L, out] where rows of a batch stand at different
    positions.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._traced: tuple[Tensor | None, Turned | None] = (
            None,
            None,
        )  # a graph is traced by one thread

    def put(self, added: Tensor | None, turned: Turned | None) -> None:
        """Hand over."""
        if torch.compiler.is_compiling():
            self._traced = (added, turned)
        else:
            self._threads.value = (added, turned)

    def take(self) -> tuple[Tensor | None, Turned | None]:
        """What was handed over, once."""
        if torch.compiler.is_compiling():
            value = self._traced
            self._traced = (None, None)
            return value
        value = getattr(self._threads, "value", (None, None))
        self._threads.value = (None, None)
        return value

    def left(self) -> bool:
        """Whether something was handed over that nobody took; it is gone afterwards."""
        added, turned = self.take()
        return added is not None or turned is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()


class PositionedLinear(nn.Linear):
    """`nn.Linear` whose bias may depend on the position."""

    slot: Slot

    def forward(self, input: Tensor) -> Tensor:
        added, turned = self.slot.take()
        if added is None and turned is None:
            return super().forward(input)
        if turned is not None:
            return _turn(super().forward(input), *turned)
        assert added is not None
        if self.bias is not None and _plain(input, self.weight, added):
            return _project(input, self.weight.t(), self.bias, added)
        return _plus(super().forward(input), added)


class PositionedConv1D(Conv1D):
    """transformers' `Conv1D` (a linear layer with its weight transposed; GPT-2) whose bias may
    depend on the position.
    """

    slot: Slot

    def forward(self, x: Tensor) -> Tensor:
        added, turned = self.slot.take()
        if added is None and turned is None:
            return self._own(x)
        if turned is not None:
            return _turn(self._own(x), *turned)
        assert added is not None
        if _plain(x, self.weight, added):
            return _project(x, self.weight, self.bias, added)
        return _plus(self._own(x), added)

    def _own(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return out


class AddAfter:
    """Forward hook that adds the encoding to a projection's output, for layers of any other kind
    (quantised ones, say).
    """

    def __call__(self, module: Any, args: Any, output: Tensor) -> Tensor:
        added, turned = module.slot.take()
        if turned is not None:
            return _turn(output, *turned)
        return output if added is None else _plus(output, added)


_POSITIONED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: PositionedLinear,
    Conv1D: PositionedConv1D,
}
_PLAIN = {positioned: plain for plain, positioned in _POSITIONED.items()}


def underlying(layer: nn.Module) -> nn.Module:
    """The layer itself, where an adapter (PEFT's LoRA, say) is wrapped around it."""
    while isinstance(inner := getattr(layer, "base_layer", None), nn.Module):
        layer = inner
    return layer


def equip(layer: nn.Module) -> torch.utils.hooks.RemovableHandle | None:
    """Give a layer a slot, in place.

    Returns the handle of the hook that serves it, if it takes one.
    """
    layer.slot = Slot()  # type: ignore[assignment]
    if type(layer) in _POSITIONED:
        layer.__class__ = _POSITIONED[type(layer)]
        return None
    return layer.register_forward_hook(AddAfter())


def restore(layer: nn.Module) -> None:
    """Undo :func:`equip`, but for its hook."""
    layer.__class__ = _PLAIN.get(type(layer), type(layer))
    del layer.slot


def out_width(layer: nn.Module, name: str) -> int:
    """Size of a projection's output."""
    width = getattr(layer, "out_features", getattr(layer, "nf", None))
    if not isinstance(width, int):
        raise LayoutError(
            f"Projection {name} must be a linear layer (with `out_features`), but is a "
            f"{type(layer).__name__}."
        )
    return width


def _plain(x: Tensor, weight: Tensor, added: Tensor) -> bool:
    """Whether the fused product gives the bits that the layer itself would: full precision on the
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
    """x·weight + bias + added, the product accumulating onto the biases: no pass over the
    activations of its own.

    Where there may be gradients, the bias is added to all rows at once, so that its own is the sum
    that the layer itself would form, to the bit. Graphs are spared this: it would bind their
    lengths.
    """
    batch, length, _ = x.shape
    if added.dim() == 2 and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        rows = (added + bias).repeat(batch, 1)
    else:
        rows = _no_view(added.expand(batch, length, -1) + bias, batch * length)
    return rows.addmm_(x.view(batch * length, -1), weight).view(batch, length, -1)


def _no_view(fresh: Tensor, rows: int) -> Tensor:
    """A tensor that nobody else holds as a matrix, as `matmul` reshapes what it works on; to
    autograd it is no view.

    What is written into a view costs the backward a copy of the whole gradient, more than all else
    here.
    """
    if torch.compiler.is_compiling():
        return fresh.view(rows, -1)
    made: Tensor = torch.ops.aten._unsafe_view.default(fresh, (rows, fresh.shape[-1]))
    return made


def _plus(out: Tensor, added: Tensor) -> Tensor:
    return out + added.to(out.device, out.dtype)


def _turn(out: Tensor, cosine: Tensor, sine: Tensor, parts: tuple[int, ...]) -> Tensor:
    """Turn every head of the output, or of some thirds of a fused one."""
    if parts:
        thirds = list(out.chunk(3, -1))
        for part in parts:
            thirds[part] = _turn(thirds[part], cosine, sine, ())
        return torch.cat(thirds, -1)
    cosine, sine = cosine.to(out.device, out.dtype), sine.to(out.device, out.dtype)
    heads = out.unflatten(-1, (-1, 2 * cosine.shape[-1]))
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).flatten(
        -2
    )
