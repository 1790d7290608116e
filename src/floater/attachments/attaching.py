"""`attach`: add an encoder to a model."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from ..encoders import EncoderConfig, PhaseFlowConfig, RotaryConfig, TableFlowConfig
from ..errors import ArgumentError, AttachmentError, brief
from .adapters import inner_model
from .attachment import Attachment, current
from .beyond import Beyond
from .building import Shapes
from .context import NAME
from .jitter import TimeJitter
from .sites import Sites


def attach(
    model: nn.Module,
    config: EncoderConfig,
    *,
    rotary: RotaryConfig | None = None,
    phases: PhaseFlowConfig | None = None,
    table: TableFlowConfig | None = None,
    sites: str | Sites = "qkv",
    positions: Literal["keep", "replace"] = "keep",
    per_stack: bool = False,
    indices: Literal["model", "mask"] = "model",
    jitter: TimeJitter | None = None,
    beyond: Beyond = "extrapolate",
) -> Attachment:
    """Add an encoder to a Hugging Face Transformer.

    A new `FlowConfig()` at "qkv" with positions "keep" leaves the outputs unchanged, to the bit,
    until it is trained.

    Args:
        model: the model; changed in place, and restored by `Attachment.detach`.
        config: settings of the encoder.
        rotary: settings of a rotary encoder beside it, which rotates the queries and keys of all
            self-attention. What the other encoder adds to them is rotated with them, as the bias of
            a projection is in a rotary model. A model that is rotary itself needs none.
        phases: settings of an encoder of a rotary model's phases beside it. For phases alone pass
            them as `config`, with sites="phases"; :func:`floater.extend` does.
        table: settings of an encoder of a model's position table beside it. For the table alone
            pass them as `config`, with sites="table"; :func:`floater.extend` does.
        sites: "input", "blocks", "qkv", "phases", "table", or `floater.Sites` for a selection.
        positions: "keep" adds to the model's built-in positions; "replace" removes them together
            with their length limit.
        per_stack: one encoder per stack, instead of one for all.
        indices: "model" numbers tokens as the model does; "mask" counts the attention mask.
        jitter: random times while training; also `attachment.jitter`, which may be changed.
        beyond: what happens to inputs longer than any in training; also `attachment.beyond`, which
            may be changed. "extrapolate" leaves their tokens at index·Δ and warns once, "compress"
            puts the tokens of such a row closer together so that they stay in the range of
            training, "error" refuses the input.

    Returns:
        The attachment, which is also the submodule `floater` of the model. The global random state
        does not change.
    """
    return bind(
        model,
        config,
        rotary=rotary,
        phases=phases,
        table=table,
        sites=sites,
        positions=positions,
        per_stack=per_stack,
        indices=indices,
        jitter=jitter,
        beyond=beyond,
    )


def bind(
    model: nn.Module,
    config: EncoderConfig,
    *,
    rotary: RotaryConfig | None = None,
    phases: PhaseFlowConfig | None = None,
    table: TableFlowConfig | None = None,
    sites: str | Sites,
    positions: Literal["keep", "replace"],
    per_stack: bool,
    indices: Literal["model", "mask"],
    jitter: TimeJitter | None = None,
    beyond: Beyond = "extrapolate",
    shapes: Shapes | None = None,
) -> Attachment:
    """Do what :func:`attach` does; `shapes` are those of weights that will be loaded, compared
    before memory is allocated.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            "`model` must be a model, such as AutoModel.from_pretrained(…) returns, but is "
            f"{brief(model)}."
        )
    if attachment(model) is not None:
        raise AttachmentError(
            "The model has an attachment already; call floater.attachment(model).detach() first."
        )
    model = inner_model(model)
    if hasattr(model, NAME):
        raise AttachmentError(
            f"The model must have no attribute `{NAME}`, the name of its attachment, but "
            f"has one of type {type(getattr(model, NAME)).__name__}; rename it."
        )
    if not isinstance(config, EncoderConfig):
        raise ArgumentError(
            f"`config` must be an encoder's config such as FlowConfig(), but is {brief(config)}."
        )
    if rotary is not None and not isinstance(rotary, RotaryConfig):
        raise ArgumentError(f"`rotary` must be a RotaryConfig or None, but is {brief(rotary)}.")
    if phases is not None and not isinstance(phases, PhaseFlowConfig):
        raise ArgumentError(f"`phases` must be a PhaseFlowConfig or None, but is {brief(phases)}.")
    if table is not None and not isinstance(table, TableFlowConfig):
        raise ArgumentError(f"`table` must be a TableFlowConfig or None, but is {brief(table)}.")
    if phases is not None and table is not None:
        raise ArgumentError(
            "`phases` or `table` must be left out, because no model has rotary positions and a "
            "table, but both are given."
        )
    if positions not in ("keep", "replace"):
        raise ArgumentError(f"`positions` must be 'keep' or 'replace', but is {positions!r}.")
    if indices not in ("model", "mask"):
        raise ArgumentError(f"`indices` must be 'model' or 'mask', but is {indices!r}.")
    selection = sites if isinstance(sites, Sites) else Sites(sites)
    with torch.random.fork_rng(devices=[]):
        attached = Attachment(
            model,
            config,
            rotary,
            phases or table,
            selection,
            positions,
            per_stack,
            indices,
            shapes,
        )
    try:
        attached.jitter, attached.beyond = jitter, beyond
    except ArgumentError:
        attached.detach()
        raise
    attached.train(model.training)
    model.add_module(NAME, attached)
    attached.context.holders = (model,)
    settings: Any = getattr(model, "config", None)
    if settings is not None:  # so that every way to save the model saves the description
        setattr(settings, NAME, attached.describe())
    attached.lengthen_input()
    return attached


def attachment(model: nn.Module) -> Attachment | None:
    """The attachment of a model, None if it has none; of a PEFT model, the copy that is trained."""
    return current(getattr(model, NAME, None))
