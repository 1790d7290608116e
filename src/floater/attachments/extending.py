"""`extend`: lead a pretrained model past the length it was built for."""

from __future__ import annotations

from typing import Any, get_args

from torch import nn

from ..encoders import PhaseFlowConfig, TableFlowConfig
from ..encoders.phases import Scaling
from ..encoders.tables import TableScaling
from ..errors import ArgumentError, LayoutError, brief
from .adapters import inner_model
from .attaching import attach, attachment
from .attachment import Attachment
from .building import positions_of
from .context import NAME
from .layouts import LAYOUTS, Layout, base_of
from .table_rows import extended_stacks, table_rows

LONGEST = 2**24
"""Number of tokens of the longest inputs."""


def extend(
    model: nn.Module,
    length: int,
    *,
    scaling: Scaling | TableScaling | None = None,
    learned: bool = True,
    exact: bool = False,
    trained: int | None = None,
) -> Attachment:
    """Let a pretrained model take longer inputs than it was trained on.

    Every frequency of a rotary model gets a clock of its own, which training can slow down (see
    :class:`floater.encoders.PhaseFlow`). A table of learned positions goes on past its last row
    (see :class:`floater.encoders.TableFlow`). Train either on short windows whose positions are
    skipped at random, `attachment.jitter = floater.TimeJitter(gaps=1, until=length)`. Whisper takes
    sound of one length only; its encoder then takes 2·length frames.

    Args:
        model: the model; changed in place and restored by `Attachment.detach`.
        length: number of tokens of the longest inputs; for Whisper, positions of its encoder, of
            which 50 are a second.
        scaling: where positions start. Of a rotary model: "none", as they are (the default), or one
            of the fixed scalings "linear", "ntk", "yarn" and "log". Of a table: "waves" (the
            default; it goes on as a sum of waves that was fitted to it), "linear" (its rows are
            spread over the length), "group", "cycle" or "hierarchy".
        learned: whether positions can be trained; without it they stay where they start.
        exact: leave inputs of up to the model's own length as they are, to the bit, also after
            training.
        trained: number of tokens that the model was trained on. Default: what its config names, or
            the rows of its table.

    Returns:
        The attachment. `floater.save_pretrained` saves it with the model; `Attachment.merge` turns
        a model with a longer table into a plain one.
    """
    for name, value in (("length", length), ("trained", 1 if trained is None else trained)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST:
            raise ArgumentError(
                f"`{name}` must be a number of tokens, from 1 to {LONGEST:,}, but is {value!r}."
            )
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"`model` must be a Hugging Face model, but is {brief(model)}.")
    kind = getattr(getattr(model, "config", None), "model_type", None)
    layout = LAYOUTS.get(str(kind))
    if layout is None or not extendable(layout):
        known = ", ".join(name for name, own in LAYOUTS.items() if extendable(own))
        raise LayoutError(
            "`extend` serves models with rotary positions or a position table, of the "
            f"architectures {known}, but {type(model).__name__} is of the architecture {kind!r}."
        )
    scalings = get_args(Scaling if layout.rotary else TableScaling)
    if scaling is not None and scaling not in scalings:
        raise ArgumentError(
            f"`scaling` must be one of {', '.join(map(repr, scalings))} for "
            f"{type(model).__name__}, but is {scaling!r}."
        )
    if layout.rotary:
        return _extend_rotary(model, length, scaling or "none", learned, exact, trained)
    return _extend_table(model, layout, length, scaling or "waves", learned, exact, trained)


def extendable(layout: Layout) -> bool:
    """Whether `extend` serves an architecture."""
    return layout.rotary or bool(extended_stacks(layout))


def _extend_rotary(
    model: nn.Module, length: int, scaling: Any, learned: bool, exact: bool, trained: int | None
) -> Attachment:
    base = base_of(model)
    limit = positions_of(base)
    old = trained or _positions_before(model) or limit
    if old is None:
        raise ArgumentError(
            f"`trained` must be given for {type(model).__name__}, whose config names no number of "
            "positions."
        )
    _check_longer(length, old)
    if attachment(model) is None and hasattr(base.config, NAME):
        delattr(base.config, NAME)  # of an attachment that was saved but not loaded
    config = PhaseFlowConfig(
        scaling=scaling, learned=learned, exact=exact, factor=length / old, length=old
    )
    attached = attach(model, config, sites="phases")
    if limit is not None and limit != length:
        attached.raise_limit((limit, length))
    return attached


def _extend_table(
    model: nn.Module,
    layout: Layout,
    length: int,
    scaling: Any,
    learned: bool,
    exact: bool,
    trained: int | None,
) -> Attachment:
    base = base_of(inner_model(model))
    rows = len(table_rows(base, layout, layout.padding_of(base.config)))
    if trained is not None and trained > rows:
        raise ArgumentError(
            f"`trained` must be at most the {rows} positions of the model's table, but is "
            f"{trained}."
        )
    old = trained or rows
    _check_longer(length, old)
    config = TableFlowConfig(
        scaling=scaling, learned=learned, exact=exact, factor=length / old, length=old
    )
    return attach(model, config, sites="table")


def _check_longer(length: int, old: int) -> None:
    if length <= old:
        raise ArgumentError(
            f"`length` must be larger than the {old} positions that the model was trained on, but "
            f"is {length}; such inputs need no extension."
        )


def _positions_before(model: nn.Module) -> int | None:
    """The number of positions of a model before an earlier extension, whose folder was loaded
    without its attachment; None if there was none.
    """
    description: Any = getattr(model.config, NAME, None)
    extension = description.get("extension") if isinstance(description, dict) else None
    return int(extension[0]) if extension else None
