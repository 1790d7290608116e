"""A base model's built-in positions: kept (and extended, if they are a sinusoid), or replaced by
zeros, which also removes their length limit.

The class of the module is swapped; its parameters stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LayoutError, LengthError
from .class_swap import ClassSwapMixin, swapped_class
from .layouts import PositionsKind


class _Switch:
    """Whether a swapped class is active; shared by the module and its `ModelPositions`."""

    def __init__(self) -> None:
        self.on = True

    def __getstate__(self) -> dict[str, bool]:
        """Copies are switched on, as copies of an attachment are enabled."""
        return {"on": True}


class _Silent(ClassSwapMixin):
    """A position table that returns zeros, in a shape that broadcasts to any length."""

    switch: _Switch

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self.switch.on:
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        table = _table(self)
        return table.new_zeros(1, 1, table.shape[-1])


class _SilentParameter(ClassSwapMixin):
    """ViT's embeddings, which add a parameter: made to interpolate it, and the interpolation
    returns zeros that broadcast to any size.
    """

    switch: _Switch

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.switch.on:
            kwargs["interpolate_pos_encoding"] = True
            args = args[:2]
        return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]

    def interpolate_pos_encoding(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        if not self.switch.on:
            base: Any = super()
            interpolated: Tensor = base.interpolate_pos_encoding(embeddings, height, width)
            return interpolated
        return embeddings.new_zeros(1, 1, embeddings.shape[-1])


class _Growing(ClassSwapMixin):
    """Marian's sinusoid ([sin | cos] halves), extended past the last row of its table by the
    formula that computed it.
    """

    switch: _Switch
    weight: Tensor

    def forward(
        self,
        input_ids_shape: Any,
        past_key_values_length: int = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        if position_ids is None:
            length = input_ids_shape[1]
            position_ids = torch.arange(length, device=self.weight.device) + past_key_values_length
        rows, dim = self.weight.shape
        if not self.switch.on or torch.compiler.is_compiling() or int(position_ids.max()) < rows:
            return super().forward(  # type: ignore[misc, no-any-return]
                input_ids_shape, past_key_values_length, position_ids=position_ids
            )
        j = torch.arange(0, dim, 2, dtype=torch.float64, device=position_ids.device)
        phase = position_ids.to(torch.float64).unsqueeze(-1) / 10_000 ** (j / dim)
        grown = torch.cat((phase.sin(), phase[..., : dim // 2].cos()), -1).to(self.weight.dtype)
        inside = (position_ids < rows).unsqueeze(-1)
        return torch.where(inside, self.weight[position_ids.clamp(max=rows - 1)], grown)


class ModelPositions:
    """The built-in positions of one stack, changed until `release`.

    Args:
        module: the table (or, for ViT, the embeddings).
        kind: what the positions are.
        replace: replace them by zeros, instead of keeping them.
    """

    def __init__(self, module: nn.Module, kind: PositionsKind, replace: bool) -> None:
        self.module, self.kind, self.replace = module, kind, replace
        self.switch = _Switch()
        self._original = type(module)
        self._frozen: list[nn.Parameter] = []
        mixin: type | None = None
        if replace:
            mixin = _SilentParameter if kind == "parameter" else _Silent
        elif kind == "sinusoidal":
            mixin = _Growing
        if mixin is not None:
            module.__class__ = swapped_class(mixin, self._original)
            module.switch = self.switch  # type: ignore[assignment]
        if replace:  # unused parameters would make DDP wait for their gradients
            name = "position_embeddings" if kind == "parameter" else "weight"
            parameter = getattr(module, name, None)
            if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                parameter.requires_grad_(False)
                self._frozen.append(parameter)

    def release(self) -> None:
        """Restore the module."""
        if type(self.module) is not self._original:
            self.module.__class__ = self._original
            del self.module.switch
        for parameter in self._frozen:
            parameter.requires_grad_(True)

    def limit(self, offset: int) -> int | None:
        """Number of positions in the table, None if there is no limit."""
        if self.replace or self.kind != "learned":
            return None
        return len(_table(self.module)) - offset

    def rows(self, length: int, offset: int) -> Tensor | None:
        """Encodings [≤ length, dim] of positions 0, 1, …; None where the model has no table."""
        if self.kind == "learned":
            return _table(self.module)[offset : offset + length]
        if self.kind == "sinusoidal":
            sinusoid: Tensor = self.module(torch.Size((1, length)))
            return sinusoid
        return None

    def check(self, length: int, offset: int) -> None:
        """Raise if the table has fewer than `length` positions."""
        limit = self.limit(offset)
        if limit is not None and length > limit:
            raise LengthError(
                f"The model's built-in position table has {limit} positions, but {length} are"
                ' needed; attach with positions="replace" to remove the table and its limit.'
            )


def _table(module: Any) -> Tensor:
    for name in ("weight", "weights"):
        table = getattr(module, name, None)
        if isinstance(table, Tensor):
            return table
    raise LayoutError(f"{type(module).__name__} has no position table.")
