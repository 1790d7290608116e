"""The rows of a model's position table, and what stands for positions past its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..encoders import TableFlow, TableFlowConfig
from ..encoders.tables import SHARE
from ..errors import LayoutError, LengthError
from .layouts import Layout, StackLayout


def extended_stacks(layout: Layout) -> dict[str, StackLayout]:
    """The stacks whose position table can grow: all that have one, but of an encoder-decoder its
    encoder, which reads the long input.
    """
    tables = {
        name: stack for name, stack in layout.stacks.items() if stack.positions_kind == "learned"
    }
    return {"encoder": tables["encoder"]} if len(tables) > 1 else tables


def table_rows(base: nn.Module, layout: Layout, padding: int | None) -> Tensor:
    """The rows [positions, dim] of a model's position table.

    Args:
        base: the base model.
        layout: its layout.
        padding: id of the padding token.
    """
    name = type(base).__name__
    stacks = extended_stacks(layout)
    modules = [
        _module_at(base, f"{stack.path}.{stack.positions}".strip(".")) for stack in stacks.values()
    ]
    if modules == [None] and len(layout.stacks) > 1:
        raise LayoutError(
            f'sites="table" needs a model with its encoder, whose table goes on, but {name} is a '
            "part of one; pass the whole model."
        )
    if not modules or not isinstance(weight := getattr(modules[0], "weight", None), Tensor):
        raise LayoutError(
            f'sites="table" needs a model with a table of learned positions that is known by name, '
            f"but {name} has none; choose another site."
        )
    (stack,) = stacks.values()
    return weight[layout.table_offset(stack, padding) :]


def _module_at(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:  # some models can do without a table
        return None


@dataclass(frozen=True)
class AddedRows:
    """What an encoder adds to the rows of a position table.

    Attributes:
        encodings: vectors [(B,) L, dim] to add.
        places: positions [1 or B, L] of the tokens, integers, or real numbers where tokens have
            times of their own.
        is_token: which [B, L] are no padding; None if that is not known.
        unpadded: the same as the model itself sees it, which gives padding the last row before that
            of position 0; None if it numbers padding like tokens.
        given: rows [1 or B, L] that the caller chose, some of them before that of position 0.
        encoder: the encoder.
        offset: rows of the table before that of position 0.
    """

    encodings: Tensor
    places: Tensor
    is_token: Tensor | None
    unpadded: Tensor | None
    given: Tensor | None
    encoder: TableFlow
    offset: int

    def apply(self, table: Tensor) -> Tensor:
        """The positions [1 or B, L, dim] of all tokens.

        Args:
            table: the weights of the model's table.
        """
        config = self.encoder.config
        rows = table[self.offset : self.offset + self.encoder.length]
        places = self.places.to(table.device)
        added = self.encodings.to(table.device, table.dtype)
        whole = own_rows(rows, places, config) + added
        last = places if self.is_token is None else places * self.is_token.to(places.device)
        self._check_length(last)
        if config.exact and self.encoder.by_input:
            short = (last.amax(-1) < len(rows))[:, None, None]
            plain = rows[places.long().clamp(max=len(rows) - 1)]
            whole = torch.where(short, plain, whole)
        if self.given is not None:
            given = self.given.to(table.device)
            before = table[given.clamp(max=self.offset - 1)]
            return torch.where((given < self.offset).unsqueeze(-1), before, whole)
        if self.offset and self.unpadded is not None:
            unpadded = self.unpadded.to(table.device).unsqueeze(-1)
            whole = torch.where(unpadded, whole, table[self.offset - 1])
        return whole

    def _check_length(self, last: Tensor) -> None:
        """Refuse positions past the extension, where several of them would share the last row."""
        longest = self.encoder.longest
        if torch.compiler.is_compiling() or not self.encoder.by_input:
            return
        if (found := int(last.max()) + 1) > longest:
            raise LengthError(
                f"The position table was extended to {longest} positions with the scaling "
                f"{self.encoder.config.scaling!r}, but {found} are needed; extend it further, or "
                "shorten the input."
            )


def own_rows(rows: Tensor, places: Tensor, config: TableFlowConfig) -> Tensor:
    """Rows [*places.shape, dim] that stand for positions, past the end of a table too.

    Args:
        rows: the table [length, dim].
        places: the positions; those between two integers are interpolated.
        config: which rows stand for positions past the end.
    """
    if config.scaling == "linear":
        return _between(rows, (places / config.factor).clamp(max=len(rows) - 1), _looked_up)
    if not places.is_floating_point():
        return _SCALINGS[config.scaling](rows, places, config)
    return _between(rows, places, lambda own, at: _SCALINGS[config.scaling](own, at, config))


def _between(rows: Tensor, places: Tensor, look_up: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Rows at real-valued places, interpolated between neighbours."""
    below = places.floor()
    share = (places - below).unsqueeze(-1).to(rows.dtype)
    lower = look_up(rows, below.long())
    upper = look_up(rows, below.long() + 1)
    return torch.where(share > 0, torch.lerp(lower, upper, share), lower)


def _looked_up(rows: Tensor, index: Tensor) -> Tensor:
    return rows[index.clamp(max=len(rows) - 1)]


def _grouped(rows: Tensor, index: Tensor, config: TableFlowConfig) -> Tensor:
    return _looked_up(rows, (index / config.factor).floor().long())


def _cyclic(rows: Tensor, index: Tensor, config: TableFlowConfig) -> Tensor:
    return rows[index % len(rows)]


def _hierarchical(rows: Tensor, index: Tensor, config: TableFlowConfig) -> Tensor:
    """α·u(i // length) + (1 - α)·u(i % length), where u is such that the first rows stay."""
    basis = (rows - SHARE * rows[:1]) / (1 - SHARE)
    slow, fast = basis[(index // len(rows)).clamp(max=len(rows) - 1)], basis[index % len(rows)]
    within = (index < len(rows)).unsqueeze(-1)
    return torch.where(within, _looked_up(rows, index), SHARE * slow + (1 - SHARE) * fast)


def _ending(rows: Tensor, index: Tensor, config: TableFlowConfig) -> Tensor:
    """Zeros past the end, where encodings are the whole position."""
    if config.approximate:
        return rows.new_zeros(*index.shape, rows.shape[-1])
    return torch.where((index < len(rows)).unsqueeze(-1), _looked_up(rows, index), 0.0)


_SCALINGS: dict[str, Callable[[Tensor, Tensor, TableFlowConfig], Tensor]] = {
    "waves": _ending,
    "group": _grouped,
    "cycle": _cyclic,
    "hierarchy": _hierarchical,
}
