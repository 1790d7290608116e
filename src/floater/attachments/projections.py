"""Projections that add a position-dependent bias inside their matrix product, or rotate its heads.

The classes below replace the class of a layer; its parameters, names and hooks stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from ..encoders.rotary import rotate
from ..errors import LayoutError
from .class_swap import change_class, has_own_forward
from .fused_heads import FusedHeads, QueryGroups
from .slot import Slot


@dataclass(frozen=True)
class HeadRotation:
    """A rotation of the heads of a projection's output.

    Attributes:
        cosine: [(B,) L, 1, head/2].
        sine: the same.
        letters: which of "q" and "k" it rotates, in a fused projection.
        fused: how that lays them out; None for a projection of its own.
    """

    cosine: Tensor
    sine: Tensor
    letters: tuple[str, ...] = ()
    fused: FusedHeads | None = None

    def apply(self, out: Tensor) -> Tensor:
        """Rotate the output [B, L, width] of a projection."""
        cosine, sine = (angle.to(out.device, out.dtype) for angle in (self.cosine, self.sine))
        if self.fused is not None:
            return self.fused.rotate(out, self.letters, cosine, sine)
        heads = out.unflatten(-1, (-1, 2 * cosine.shape[-1]))
        return rotate(heads, cosine, sine).flatten(-2)


class ProjectionInput(NamedTuple):
    """What a projection takes.

    Attributes:
        added: a bias that depends on the position, [L, out], or [B, L, out] where the rows of a
            batch have different positions.
        rotation: of its heads.
        whole: `added` contains the projection's own bias, and nothing else refers to it.
        grouped: the heads of q share encodings, and `added` has one for each head of k.
    """

    added: Tensor | None = None
    rotation: HeadRotation | None = None
    whole: bool = False
    grouped: QueryGroups | None = None

    def spread(self) -> Tensor:
        """What is added to the output, with an encoding for every head."""
        assert self.added is not None
        return self.added if self.grouped is None else self.grouped.spread(self.added)


_NOTHING = ProjectionInput()


class PositionedLinear(nn.Linear):
    """`nn.Linear` whose bias may depend on the position."""

    slot: Slot[ProjectionInput]

    def forward(self, input: Tensor) -> Tensor:
        slot = self.slot
        vector = slot.take_vector()
        if vector is not None:
            return self._with_vector(input, vector)
        given = slot.take() or _NOTHING
        added = given.added
        if added is None:
            out = super().forward(input)
        elif not _can_fuse(input, self.weight, added):
            out = F.linear(input, self.weight, None if given.whole else self.bias)
            out = _add(out, given.spread())
        elif given.whole:
            out = _project_onto(added, input, self.weight.t())
        else:
            out = _project(input, self.weight.t(), self.bias, given)
        return out if given.rotation is None else given.rotation.apply(out)

    def _with_vector(self, input: Tensor, vector: Tensor) -> Tensor:
        """The output where all tokens have one position, whose encoding [out] is a bias."""
        own: Mapping[str, Any] = self._parameters
        direct = "weight" in own and "bias" in own  # not so in a parametrised layer
        # `self.weight` takes as long as everything else here but the product
        weight: Tensor = own["weight"] if direct else self.weight
        bias: Tensor | None = own["bias"] if direct else self.bias
        if vector.dtype != weight.dtype or weight.dtype in (torch.float16, torch.bfloat16):
            return _add(F.linear(input, weight, bias), vector)
        return F.linear(input, weight, vector if bias is None else vector + bias)


class PositionedConv1D(Conv1D):
    """transformers' `Conv1D` (a linear layer with its weight transposed; GPT-2) whose bias may
    depend on the position.
    """

    slot: Slot[ProjectionInput]

    def forward(self, x: Tensor) -> Tensor:
        given = self.slot.take() or _NOTHING
        if given.added is None:
            out = self._plain_forward(x)
        elif _can_fuse(x, self.weight, given.added):
            out = _project(x, self.weight, self.bias, given)
        else:
            out = _add(self._plain_forward(x), given.spread())
        return out if given.rotation is None else given.rotation.apply(out)

    def _plain_forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return out


class AddAfter:
    """Forward hook that adds the encoding to the output of other kinds of projections (e.g.
    quantised ones).
    """

    def __call__(self, module: Any, args: Any, output: Tensor) -> Tensor:
        given = module.slot.take() or _NOTHING
        out = output if given.added is None else _add(output, given.spread())
        return out if given.rotation is None else given.rotation.apply(out)


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
    slot: Slot[ProjectionInput] = Slot()
    layer.slot = slot  # type: ignore[assignment]
    if type(layer) in _POSITIONED and not has_own_forward(layer):
        change_class(layer, _POSITIONED[type(layer)])
        return None
    return layer.register_forward_hook(AddAfter())


def restore(layer: nn.Module) -> None:
    """Undo :func:`equip`, except for the hook."""
    change_class(layer, _PLAIN.get(type(layer), type(layer)))
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


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, given: ProjectionInput) -> Tensor:
    """x·weight + bias + what is given. The product accumulates onto the biases, which saves a pass
    over the activations.

    With gradients, the bias is added to all rows at once, so that its gradient is the same sum as
    in the layer itself, to the bit. Graphs do without, because it would fix their lengths.
    """
    batch, length, _ = x.shape
    if bias is None:
        return _project_onto(_repeated(given, batch), x, weight)
    added = given.spread()
    if added.dim() == 2 and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        return _project_onto(_repeated(ProjectionInput(added + bias), batch), x, weight)
    return _project_onto(added.expand(batch, length, -1) + bias, x, weight)


def _project_onto(fresh: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """x·weight + fresh, computed in the memory of `fresh` [B, L, out] (or its heads, …)."""
    batch, length, _ = x.shape
    rows = _flatten_rows(fresh, batch * length)
    return rows.addmm_(x.view(batch * length, -1), weight).view(batch, length, -1)


def _repeated(given: ProjectionInput, batch: int) -> Tensor:
    """A fresh tensor with the bias of every row of a batch: [B, L, out], or [B, L, heads of k,
    queries, head]; in graphs [B·L, out].

    `Tensor.repeat` does the same and takes three times as long for tensors of this size. Graphs
    use it, because expansion would fix their lengths.
    """
    if torch.compiler.is_compiling():
        added = given.spread()
        return added.repeat(batch, 1) if added.dim() == 2 else added.flatten(0, 1).clone()
    assert given.added is not None
    heads = given.added if given.grouped is None else given.grouped.heads(given.added)
    inner = heads.shape[-1:] if given.grouped is None else heads.shape[-3:]
    repeated = heads.expand(batch, given.added.shape[-2], *inner)
    return repeated.clone(memory_format=torch.contiguous_format)


def _flatten_rows(fresh: Tensor, rows: int) -> Tensor:
    """Reshape a tensor that has no other reference to a matrix, without making it a view.

    Writing into a view would make the backward pass copy the whole gradient, which costs more than
    everything else here.
    """
    if torch.compiler.is_compiling():
        return fresh if fresh.dim() == 2 else fresh.view(rows, -1)
    shape = (rows, fresh.numel() // rows)
    matrix: Tensor = torch.ops.aten._unsafe_view.default(fresh, shape)
    return matrix


def _add(out: Tensor, added: Tensor) -> Tensor:
    return out + added.to(out.device, out.dtype)
