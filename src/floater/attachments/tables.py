"""Let the position table of a model take encodings, and go on past its last row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .class_swap import ClassSwapMixin, check_class_counts, swap_in, swap_out

if TYPE_CHECKING:
    from .hooks.carrier import Carrier


class _Grown(ClassSwapMixin):
    """A position table that goes on past its last row."""

    carrier: Carrier
    weight: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        pending = self.carrier.top()
        if pending is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        return pending.added_rows().apply(self.weight)


def equip_table(module: nn.Module, carrier: Carrier) -> None:
    """Let the position table of a model take encodings."""
    check_class_counts(module, "with the model's position table")
    swap_in(module, _Grown, carrier)


def restore_table(module: nn.Module) -> None:
    """Undo :func:`equip_table`."""
    swap_out(module, _Grown)
