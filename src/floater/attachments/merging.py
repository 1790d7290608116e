"""Write a longer position table into a model itself, so that it needs no attachment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..encoders import TableFlow
from ..errors import ArgumentError, AttachmentError
from .context import HookContext
from .layouts import base_of
from .sites import StackSites
from .table_rows import own_rows


@torch.no_grad()
def longer_table(encoder: TableFlow, rows: Tensor, length: int) -> Tensor:
    """The positions [length, dim] of a table and of what comes after it.

    Args:
        encoder: what is added to the rows.
        rows: the model's own table.
        length: number of positions.
    """
    places = torch.arange(length, device=rows.device)
    own = own_rows(rows[: encoder.length], places, encoder.config)
    return own + encoder.table(length)[:, 0].to(rows)


@torch.no_grad()
def merge_table(context: HookContext, encoders: nn.ModuleDict, length: int | None) -> None:
    """Replace the position table of a model by a longer one, in place.

    Args:
        context: what is known of the model.
        encoders: the encoders of its attachment.
        length: number of positions; by default, that of the extension.
    """
    encoder, stack = _mergeable(context, encoders)
    if length is None:
        length = encoder.longest
    if isinstance(length, bool) or not isinstance(length, int) or length < encoder.length:
        raise ArgumentError(
            f"`length` must be at least the {encoder.length} positions of the model's own table, "
            f"but is {length!r}."
        )
    encoder.check_length(length)
    module: Any = stack.positions_module
    offset = context.table_offset(stack)
    table = longer_table(encoder, module.weight[offset:], length)
    grown = nn.Parameter(torch.cat((module.weight[:offset], table)), module.weight.requires_grad)
    more = len(grown) - len(module.weight)
    module.weight, module.num_embeddings = grown, len(grown)
    context.release_limit()
    limit = stack.layout.limit
    for owner in _owners(context, limit):
        setattr(owner, limit, getattr(owner, limit) + more)
    path = stack.layout.positions.rpartition(".")[0]
    _lengthen_buffers(stack.module.get_submodule(path), more)


def _mergeable(context: HookContext, encoders: nn.ModuleDict) -> tuple[TableFlow, StackSites]:
    """The encoder of the table and its stack; refuses attachments that are more than a table."""
    encoder = dict(encoders.items()).get("table")
    if not isinstance(encoder, TableFlow):
        raise AttachmentError(
            '`merge` needs an attachment with sites="table", such as floater.extend makes for a '
            "model with a position table, but this one has none; use bake(length)."
        )
    if len(encoders) > 1:
        raise AttachmentError(
            "`merge` needs an attachment to the position table alone, but this one also has "
            "encodings at other sites, which no table can hold; use bake(length)."
        )
    if encoder.config.exact and encoder.by_input:
        raise AttachmentError(
            f"`merge` needs positions that do not depend on the length of an input, but `exact` "
            f"with the scaling {encoder.config.scaling!r} gives short inputs others; use "
            "bake(length)."
        )
    stack = context.built_in_stack()
    if [other.layout.limit for other in context.plan.stacks].count(stack.layout.limit) > 1:
        raise AttachmentError(
            "`merge` needs a model of one stack, but this is an encoder-decoder, whose config has "
            "one number of positions for both; use bake(length)."
        )
    return encoder, stack


def _owners(context: HookContext, limit: str) -> list[Any]:
    """The configs and stacks that have a number of positions of this name."""
    holders = [module for holder in context.holders for module in (holder, base_of(holder))]
    stacks = [stack.module for stack in context.plan.stacks]
    owners = [*stacks, *(getattr(module, "config", None) for module in (*holders, *stacks))]
    return [
        owner for owner in {id(each): each for each in owners}.values() if hasattr(owner, limit)
    ]


def _lengthen_buffers(embeddings: nn.Module, more: int) -> None:
    """Lengthen the buffers that embeddings look positions and types up in."""
    ids, types = (getattr(embeddings, name, None) for name in ("position_ids", "token_type_ids"))
    if isinstance(ids, Tensor):
        longer = torch.arange(ids.shape[-1] + more, device=ids.device).unsqueeze(0)
        embeddings.position_ids = longer
    if isinstance(types, Tensor):
        zeros = types.new_zeros(1, types.shape[-1] + more)
        embeddings.token_type_ids = zeros
