"""`Attachment`: an encoder bound to the sites of one model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..encoders import EncoderConfig, NoPosition, Rotary, RotaryConfig, encoder_kind
from ..errors import ArgumentError, AttachmentError
from .adapters import active_module
from .building import Shapes, build_encoders, groups_of
from .context import NAME, HookContext
from .installation import Installation
from .layouts import Layout, base_of, layout_of
from .site_encoders import SiteEncoders
from .sites import Sites, make_plan
from .token_positions import CustomTimes, check_custom_times

ATTACHMENT_FORMAT = 1
"""Version of the saved description."""


class Attachment(SiteEncoders):
    """An encoder bound to the sites of one model. Created by :func:`attach`.

    Attributes:
        config: settings of the encoder.
        sites: where encodings are added.
        positions: whether the model's built-in positions are kept or replaced.
        per_stack: whether each stack has its own encoder.
        indices: whether tokens are numbered as the model does, or by the attention mask.
        layout: where the architecture has its sites.
        encoders: the encoders, by group of sites.
    """

    def __init__(
        self,
        model: nn.Module,
        config: EncoderConfig,
        sites: Sites,
        positions: Literal["keep", "replace"],
        per_stack: bool,
        indices: Literal["model", "mask"],
        shapes: Shapes | None = None,
    ) -> None:
        layout = layout_of(model, sites.targets)
        base = model if sites.targets is not None else base_of(model)
        _check_compatible(model, config, sites, layout, indices)
        plan = make_plan(base, layout, sites, additive=not isinstance(config, RotaryConfig))
        super().__init__(
            config,
            build_encoders(config, plan, base, per_stack, shapes),
            groups_of(plan, per_stack),
        )
        self.sites, self.positions = sites, positions
        self.per_stack, self.indices = per_stack, indices
        self.layout: Layout = layout
        padding: int | None = getattr(getattr(base, "config", None), "pad_token_id", None)
        self._installation = Installation(HookContext(self, plan, layout, indices, padding))
        self._installation.install(base, positions)

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """A copy together with its model belongs to the copied model; a copy alone (PEFT makes one)
        serves the same model once it is in the original's place.
        """
        if not memo:
            memo[id(self._installation)] = self._installation
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        return copied

    @property
    def context(self) -> HookContext:
        """What hooks know of the model; for internal use."""
        return self._installation.context

    @property
    def encoder(self) -> nn.Module:
        """The encoder; with `per_stack`, use `encoders` instead."""
        if len(self.encoders) > 1:
            names = ", ".join(map(repr, self.encoders))
            raise AttachmentError(
                f"This attachment has one encoder per stack: use .encoders[…] with one of {names}."
            )
        return next(iter(self.encoders.values()))

    @property
    def num_sites(self) -> int:
        """Number of sites, over all stacks."""
        return len(self.context.plan.stack_names)

    def num_parameters(self) -> int:
        """Number of parameters that the attachment adds to its model."""
        return sum(parameter.numel() for parameter in self.parameters())

    def site_names(self) -> list[str]:
        """A name for each site, in the order of `site_tables`."""
        return self.context.plan.site_names(self.sites.kind)

    @torch.no_grad()
    def site_tables(self, length: int) -> Tensor | None:
        """Encodings [length, sites, dim] of positions 0, 1, …, over all stacks; None for an encoder
        that adds nothing.
        """
        if isinstance(next(iter(self.encoders.values())), Rotary | NoPosition):
            return None
        return self.join({name: table[:length] for name, table in self.tables(length).items()})

    @torch.no_grad()
    def own_table(self, length: int) -> Tensor | None:
        """The model's built-in position encodings [≤ length, dim]; None where it has none, or they
        were replaced.
        """
        for stack in self.context.plan.stacks:
            model_positions = self.context.model_positions.get(stack.name)
            if model_positions is not None and not model_positions.replace:
                return model_positions.rows(length, self.context.table_offset(stack))
        return None

    @property
    def enabled(self) -> bool:
        """Whether encodings are added at present."""
        return self.context.enabled

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model is as it was before `attach`."""
        before = self.enabled
        self.context.set_enabled(False)
        try:
            yield
        finally:
            self.context.set_enabled(before)

    @contextmanager
    def at(
        self,
        times: Tensor | Sequence[float] | None = None,
        *,
        source: Any = None,
        target: Any = None,
    ) -> Iterator[None]:
        """Inside, tokens stand at these real-valued times instead of at index·Δ.

        Rows are repeated for beams. Tokens past the last time (generated ones) continue by Δ.

        Args:
            times: [length] or [batch, length], for models of one stack.
            source: the same for the encoder of an encoder-decoder.
            target: the same for its decoder; by default, target tokens stand at index·Δ.
        """
        two_stacks = len(self.context.plan.stacks) > 1
        if two_stacks and times is not None:
            raise ArgumentError(
                "An encoder-decoder takes `source=` and `target=`, but `times` was given."
            )
        if not two_stacks and (source is not None or target is not None):
            raise ArgumentError(
                "A model of one stack takes `times`, but `source=` or `target=` was given."
            )
        if times is None and source is None and target is None:
            raise ArgumentError("`at` needs times, but none were given.")
        before = self.context.custom_times
        self.context.custom_times = CustomTimes(
            check_custom_times(target, "target")
            if two_stacks
            else check_custom_times(times, "times"),
            check_custom_times(source, "source"),
        )
        try:
            yield
        finally:
            self.context.custom_times = before

    def detach(self) -> None:
        """Remove the attachment; the model is as it was before `attach`."""
        self._installation.remove()
        for holder in self.context.holders:
            attached = current(holder._modules.get(NAME))
            if attached is not None and attached.context is self.context:
                delattr(holder, NAME)
            if getattr(getattr(holder, "config", None), NAME, None) is not None:
                delattr(holder.config, NAME)

    def describe(self) -> dict[str, Any]:
        """Everything that `attach` needs to create this attachment again, ready for JSON."""
        return {
            "format": ATTACHMENT_FORMAT,
            "encoder": {"kind": encoder_kind(self.config), **self.config.model_dump(mode="json")},
            "sites": self.sites.model_dump(mode="json"),
            "positions": self.positions,
            "per_stack": self.per_stack,
            "indices": self.indices,
        }

    def extra_repr(self) -> str:
        baked = f", baked to {self.baked_length}" if self.baked_length is not None else ""
        return f"sites={self.sites.kind!r} ({self.num_sites}), positions={self.positions!r}{baked}"


def current(module: object) -> Attachment | None:
    """The attachment that a submodule named `floater` stands for: itself, or the copy that PEFT
    trains.
    """
    attached = active_module(module)
    return attached if isinstance(attached, Attachment) else None


def _check_compatible(
    model: nn.Module, config: EncoderConfig, sites: Sites, layout: Layout, indices: str
) -> None:
    """Refuse settings that do not fit the model or each other."""
    if (
        layout.drops_arguments
        and indices == "mask"
        and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    ):
        raise ArgumentError(
            '`indices` must be "model" for the blocks of an encoder-decoder that are given by path'
            ' pattern, but is "mask"; which of its two masks belongs to them is unknown.'
        )
    if isinstance(config, RotaryConfig) and sites.kind != "qkv":
        raise ArgumentError(
            f'`sites` must be "qkv" for a rotary encoder, which rotates queries and keys, but is'
            f" {sites.kind!r}."
        )
