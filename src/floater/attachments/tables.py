"""Let the position table of a model take encodings, and go on past its last row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .class_swap import ClassSwapMixin, change_class, check_class_counts, swapped_class

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
    change_class(module, swapped_class(_Grown, type(module)))
    module.carrier = carrier  # type: ignore[assignment]


def restore_table(module: nn.Module) -> None:
    """Undo :func:`equip_table`."""
    if isinstance(module, _Grown):
        change_class(module, type(module).__bases__[1])
        del module.carrier
