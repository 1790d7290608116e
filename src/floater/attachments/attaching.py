"""`attach`: puts an encoder into a model."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from ..encoders import EncoderConfig
from ..errors import ArgumentError, AttachmentError, brief
from .adapters import inner_model
from .attachment import NAME, Attachment, current
from .building import Shapes
from .sites import Sites


def attach(
    model: nn.Module,
    config: EncoderConfig,
    *,
    sites: str | Sites = "qkv",
    positions: Literal["keep", "replace"] = "keep",
    per_stack: bool = False,
    indices: Literal["model", "mask"] = "model",
) -> Attachment:
    """Put an encoder into a Hugging Face Transformer.

    A fresh `FlowConfig()` at "qkv" with positions "keep" changes nothing, to the bit, until it is
    trained.

    Args:
        model: the model; changed in place, and restored by `Attachment.detach`.
        config: which encoder.
        sites: "input", "blocks", "qkv", or `floater.Sites` for a part of them.
        positions: "keep" adds to the model's own position encoding; "replace" takes it out, and its
            length limit with it.
        per_stack: one encoder for each stack, instead of one for all.
        indices: "model" numbers tokens as the model itself does; "mask" counts the attention mask.

    Returns:
        The attachment, which is also the submodule `floater` of the model. The global random state
        is left as it was.
    """
    return bind(
        model, config, sites=sites, positions=positions, per_stack=per_stack, indices=indices
    )


def bind(
    model: nn.Module,
    config: EncoderConfig,
    *,
    sites: str | Sites,
    positions: Literal["keep", "replace"],
    per_stack: bool,
    indices: Literal["model", "mask"],
    shapes: Shapes | None = None,
) -> Attachment:
    """What :func:`attach` does; `shapes` are those of weights that will be loaded, compared before
    anything is allocated.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            "`model` must be a model, such as AutoModel.from_pretrained(…) gives, but is "
            f"{brief(model)}."
        )
    if attachment(model) is not None:
        raise AttachmentError(
            "The model has an attachment already; call floater.attachment(model).detach() first."
        )
    model = inner_model(model)
    if hasattr(model, NAME):
        raise AttachmentError(
            f"The model must have no attribute `{NAME}`, which is where its attachment goes, but "
            f"has one of type {type(getattr(model, NAME)).__name__}; rename it."
        )
    if not isinstance(config, EncoderConfig):
        raise ArgumentError(
            f"`config` must be an encoder's config such as FlowConfig(), but is {brief(config)}."
        )
    if positions not in ("keep", "replace"):
        raise ArgumentError(f"`positions` must be 'keep' or 'replace', but is {positions!r}.")
    if indices not in ("model", "mask"):
        raise ArgumentError(f"`indices` must be 'model' or 'mask', but is {indices!r}.")
    chosen = sites if isinstance(sites, Sites) else Sites(sites)
    with torch.random.fork_rng(devices=[]):
        made = Attachment(model, config, chosen, positions, per_stack, indices, shapes)
    made.train(model.training)
    model.add_module(NAME, made)
    made._installation.holders = (model,)
    settings: Any = getattr(model, "config", None)
    if settings is not None:  # every way to save the model carries the description along
        setattr(settings, NAME, made.describe())
    return made


def attachment(model: nn.Module) -> Attachment | None:
    """The attachment of a model, None if it has none; of a PEFT model, the one that is trained."""
    return current(getattr(model, NAME, None))
