"""`extend`: lead a pretrained model past the length it was built for."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..encoders import PhaseFlowConfig
from ..encoders.phases import Scaling
from ..errors import ArgumentError, LayoutError, brief
from .attaching import attach, attachment
from .attachment import Attachment
from .building import positions_of
from .context import NAME
from .layouts import LAYOUTS, base_of

_LONGEST = 2**24
"""Number of tokens of the longest inputs."""


def extend(
    model: nn.Module,
    length: int,
    *,
    scaling: Scaling = "none",
    learned: bool = True,
    exact: bool = False,
    trained: int | None = None,
) -> Attachment:
    """Let a rotary model take longer inputs than it was trained on.

    Every frequency of its rotary positions gets a clock of its own, which training can slow down
    (see :class:`floater.encoders.PhaseFlow`). Until it is trained, the model is unchanged to the
    bit; with a scaling it starts there. Train it on short windows whose positions are skipped at
    random, `attachment.jitter = floater.TimeJitter(gaps=1, until=length)`.

    Args:
        model: the model; changed in place, with `config.max_position_embeddings`, and restored by
            `Attachment.detach`.
        length: number of tokens of the longest inputs.
        scaling: where the clocks start: "none", or one of the fixed scalings "linear", "ntk",
            "yarn" and "log".
        learned: whether the clocks can be trained; without it they stay at the scaling.
        exact: leave inputs of up to the model's own length as they are, to the bit, also after
            training; the clocks change past it only.
        trained: number of tokens that the model was trained on. Default: what its config names.

    Returns:
        The attachment. `floater.save_pretrained` saves it with the model.
    """
    for name, value in (("length", length), ("trained", trained)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST
        ):
            raise ArgumentError(
                f"`{name}` must be a number of tokens, from 1 to {_LONGEST:,}, but is {value!r}."
            )
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"`model` must be a Hugging Face model, but is {brief(model)}.")
    base = base_of(model)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in LAYOUTS or not LAYOUTS[kind].rotary:
        known = ", ".join(name for name, layout in LAYOUTS.items() if layout.rotary)
        raise LayoutError(
            f"`extend` serves rotary models of the architectures {known}, but "
            f"{type(model).__name__} is of the architecture {kind!r}."
        )
    limit = positions_of(base)
    old = trained or _positions_before(model) or limit
    if old is None:
        raise ArgumentError(
            f"`trained` must be given for {type(model).__name__}, whose config names no number of "
            "positions."
        )
    if length <= old:
        raise ArgumentError(
            f"`length` must be larger than the {old} positions that the model was trained on, but "
            f"is {length}; such inputs need no extension."
        )
    if attachment(model) is None and hasattr(base.config, NAME):
        delattr(base.config, NAME)  # of an attachment that was saved but not loaded
    config = PhaseFlowConfig(
        scaling=scaling, learned=learned, exact=exact, factor=length / old, length=old
    )
    attached = attach(model, config, sites="phases")
    if limit is not None and limit != length:
        attached.raise_limit((limit, length))
    return attached


def _positions_before(model: nn.Module) -> int | None:
    """The number of positions of a model before an earlier extension, whose folder was loaded
    without its attachment; None if there was none.
    """
    description: Any = getattr(model.config, NAME, None)
    extension = description.get("extension") if isinstance(description, dict) else None
    return int(extension[0]) if extension else None
