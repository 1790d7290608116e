"""A base model's built-in positions: kept (and extended, if they are a sinusoid), or replaced by
zeros, which also removes their length limit.

The class of the module is swapped; its parameters stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LayoutError, LengthError
from .class_swap import ClassSwapMixin, change_class, check_class_counts, swapped_class
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


class _SilentConvolution(ClassSwapMixin):
    """Positions that a model computes from its hidden states (wav2vec2): zeros."""

    switch: _Switch

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not self.switch.on:
            return super().forward(hidden_states)  # type: ignore[misc, no-any-return]
        return hidden_states.new_zeros(1, 1, hidden_states.shape[-1])


class _Unrotated(ClassSwapMixin):
    """Rotary angles of a model: all zero, so that its queries and keys stay as they are."""

    switch: _Switch

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cosine, sine = super().forward(*args, **kwargs)  # type: ignore[misc]
        if not self.switch.on:
            return cosine, sine
        return torch.ones_like(cosine), torch.zeros_like(sine)


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


_REPLACED: dict[PositionsKind, type] = {
    "parameter": _SilentParameter,
    "rotary": _Unrotated,
    "convolution": _SilentConvolution,
}
"""What replaces built-in positions that are no table."""


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
            mixin = _REPLACED.get(kind, _Silent)
        elif kind == "sinusoidal":
            mixin = _Growing
        if mixin is not None:
            check_class_counts(module, "with the model's built-in positions")
            change_class(module, swapped_class(mixin, self._original))
            module.switch = self.switch  # type: ignore[assignment]
        if replace:  # unused parameters would make DDP wait for their gradients
            names = ("position_embeddings",) if kind == "parameter" else None
            self._frozen = _freeze(
                parameter
                for name, parameter in module.named_parameters()
                if names is None or name in names
            )

    def release(self) -> None:
        """Restore the module."""
        if type(self.module) is not self._original:
            change_class(self.module, self._original)
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


class _NoRelativeBias(ClassSwapMixin):
    """A module that computes a bias of the attention by distance, under the name that its
    architecture has for it: there is none.
    """

    switch: _Switch

    def compute_bias(self, query_length: int, key_length: int, **kwargs: Any) -> Tensor:
        """T5: zeros."""
        base: Any = super()
        bias: Tensor = base.compute_bias(query_length, key_length, **kwargs)
        return torch.zeros_like(bias) if self.switch.on else bias

    def compute_position_bias(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """MPNet: nothing is added."""
        base: Any = super()
        return None if self.switch.on else base.compute_position_bias(*args, **kwargs)

    def disentangled_attention_bias(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """DeBERTa: nothing is added."""
        base: Any = super()
        return None if self.switch.on else base.disentangled_attention_bias(*args, **kwargs)


class RelativePositions:
    """The relative positions of one stack, removed until `release`.

    Args:
        modules: the modules that compute them.
        weights: the modules whose weights only they use.
    """

    def __init__(self, modules: Sequence[nn.Module], weights: Iterable[nn.Module]) -> None:
        self._originals = [(module, type(module)) for module in modules]
        self.switch = _Switch()
        for module, original in self._originals:
            change_class(module, swapped_class(_NoRelativeBias, original))
            module.switch = self.switch  # type: ignore[assignment]
        self._frozen = _freeze(parameter for module in weights for parameter in module.parameters())

    def release(self) -> None:
        """Restore the modules."""
        for module, original in self._originals:
            change_class(module, original)
            del module.switch
        for parameter in self._frozen:
            parameter.requires_grad_(True)


def _freeze(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Freeze parameters; return those that were not frozen before."""
    frozen = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return frozen


def _table(module: Any) -> Tensor:
    for name in ("weight", "weights"):
        table = getattr(module, name, None)
        if isinstance(table, Tensor):
            return table
    raise LayoutError(f"{type(module).__name__} has no position table.")
