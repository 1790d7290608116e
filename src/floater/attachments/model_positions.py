"""A base model's own position encoding: kept (and grown, if it is a sinusoid), or taken out
together with its limit.

As with projections, a module's class is exchanged and its parameters stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LayoutError, LengthError


class _Switch:
    """Whether the exchange is in force; shared with the attachment that made it."""

    def __init__(self) -> None:
        self.on = True

    def __getstate__(self) -> dict[str, bool]:
        """A copy made while the exchange is off is on, as a copy of the attachment is."""
        return {"on": True}


class Exchanged:
    """A class made from a mixin and a module's own class; pickles and copies are made from
    the two.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        mixin, plain = type(self).__bases__
        return _revive, (mixin, plain), self.__dict__


def exchanged(mixin: type, plain: type) -> type:
    """The class that behaves like `plain` but for what `mixin` changes."""
    return type(f"{mixin.__name__[1:]}{plain.__name__}", (mixin, plain), {})


def _revive(mixin: type, plain: type) -> object:
    return object.__new__(exchanged(mixin, plain))


class _Silent(Exchanged):
    """A position table that answers zero, in a shape that fits any length."""

    switch: _Switch

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self.switch.on:
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        like: Tensor = _table(self)
        return like.new_zeros(1, 1, like.shape[-1])


class _SilentParameter(Exchanged):
    """ViT's embeddings, which add a parameter: asked to interpolate it, they get zeros of any
    size.
    """

    switch: _Switch

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.switch.on:
            kwargs["interpolate_pos_encoding"] = True
            args = args[:2]
        return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]

    def interpolate_pos_encoding(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        if not self.switch.on:
            return super().interpolate_pos_encoding(embeddings, height, width)  # type: ignore[misc, no-any-return]
        return embeddings.new_zeros(1, 1, embeddings.shape[-1])


class _Growing(Exchanged):
    """Marian's sinusoid ([sin | cos] halves), continued past the last row of its table by the
    formula that made it.
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


class Own:
    """The own encoding of one stack, exchanged until `release`.

    Args:
        module: the table (or, for ViT, the embeddings).
        kind: what it is, see `layouts.Own`.
        replace: take it out, instead of keeping it.
    """

    def __init__(self, module: nn.Module, kind: str, replace: bool) -> None:
        self.module, self.kind, self.replace = module, kind, replace
        self.switch = _Switch()
        self._plain = type(module)
        silent: type = _SilentParameter if kind == "parameter" else _Silent
        kept: type | None = _Growing if kind == "sinusoidal" else None
        mixin = silent if replace else kept
        self._frozen: list[nn.Parameter] = []
        if mixin is not None:
            module.__class__ = exchanged(mixin, self._plain)
            module.switch = self.switch  # type: ignore[assignment]
        if (
            replace
        ):  # nothing flows through these any more; an optimiser or DDP must not wait for it
            named = "position_embeddings" if kind == "parameter" else "weight"
            parameter = getattr(module, named, None)
            if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                parameter.requires_grad_(False)
                self._frozen.append(parameter)

    def release(self) -> None:
        """Give the module back as it was."""
        if type(self.module) is not self._plain:
            self.module.__class__ = self._plain
            del self.module.switch
        for parameter in self._frozen:
            parameter.requires_grad_(True)

    def limit(self, offset: int) -> int | None:
        """Positions that can be served, None if there is no end."""
        if self.replace or self.kind != "learned":
            return None
        return len(_table(self.module)) - offset

    def rows(self, length: int, offset: int) -> Tensor | None:
        """Encodings [≤ length, dim] of positions 0, 1, …; None where they are not a table of
        rows.
        """
        if self.kind == "learned":
            return _table(self.module)[offset : offset + length]
        if self.kind == "sinusoidal":
            grown: Tensor = self.module(torch.Size((1, length)))
            return grown
        return None

    def check(self, length: int, offset: int) -> None:
        """Raise if the kept table ends before `length`."""
        limit = self.limit(offset)
        if limit is not None and length > limit:
            raise LengthError(
                f"The model's own position table has {limit} positions, but {length} are needed;"
                ' attach with positions="replace" to take the table out and its limit with it.'
            )


def _table(module: Any) -> Tensor:
    for name in ("weight", "weights"):
        table = getattr(module, name, None)
        if isinstance(table, Tensor):
            return table
    raise LayoutError(f"{type(module).__name__} holds no position table.")
