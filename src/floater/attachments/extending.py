"""`extend`: lead a pretrained model past the length it was built for."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..encoders import PhaseFlowConfig
from ..encoders.phases import Scaling
from ..errors import ArgumentError, LayoutError
from .attaching import attach
from .attachment import Attachment
from .building import positions_of
from .layouts import base_of, layout_of


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
        model: the model; changed in place, and restored by `Attachment.detach`, except for
            `config.max_position_embeddings`.
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
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArgumentError(f"`{name}` must be a number of tokens, but is {value!r}.")
    base = base_of(model)
    layout = layout_of(model, None)
    if not layout.rotary:
        raise LayoutError(
            "`extend` serves models with rotary positions (llama, mistral, qwen, gemma, smollm3, "
            f"phi3, gpt_neox, modernbert), but {type(model).__name__} has others; for a table of "
            'positions attach a flow with positions="replace", which has no limit.'
        )
    old = trained or positions_of(base)
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
    config = PhaseFlowConfig(
        scaling=scaling, learned=learned, exact=exact, factor=length / old, length=old
    )
    attached = attach(model, config, sites="phases")
    settings: Any = getattr(base, "config", None)
    if settings is not None and isinstance(getattr(settings, "max_position_embeddings", None), int):
        settings.max_position_embeddings = max(settings.max_position_embeddings, length)
    return attached
