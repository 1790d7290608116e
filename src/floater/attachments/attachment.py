"""`Attachment`: an encoder bound to the sites of one model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoders import (
    EncoderConfig,
    PhaseFlowConfig,
    RelativeConfig,
    RotaryConfig,
    TableFlow,
    TableFlowConfig,
    encoder_kind,
)
from ..errors import ArgumentError, AttachmentError
from .adapters import active_module
from .building import (
    BuiltIn,
    Shapes,
    build_encoders,
    build_rotary,
    built_in_size,
    fit_built_in,
    groups_of,
    positions_of,
)
from .context import NAME, HookContext
from .installation import Installation
from .layouts import Layout, base_of, layout_of
from .limits import Extension, PositionLimit
from .merging import merge_table
from .planning import make_plan
from .relative_attention import check_relative
from .site_encoders import SiteEncoders
from .sites import Sites
from .token_positions import CustomTimes, check_custom_times

ATTACHMENT_FORMAT = 3
"""Version of the saved description. Version 1 had no `rotary`, and its flows had the free pace;
version 2 had no range of training.
"""


class Attachment(SiteEncoders):
    """An encoder bound to the sites of one model. Created by :func:`attach`.

    Attributes:
        config: settings of the encoder.
        rotary_config: settings of the rotary encoder beside it, if any.
        built_in_config: settings of the encoder of built-in positions beside it (the phases of a
            rotary model, a position table), if any.
        sites: where encodings are added.
        positions: whether the model's built-in positions are kept or replaced.
        per_stack: whether each stack has its own encoder.
        indices: whether tokens are numbered as the model does, or by the attention mask.
        layout: where the architecture has its sites.
        encoders: the encoders whose encodings are added, or the relative ones, by group of sites.
        rotary: the encoder that rotates queries and keys, if any.
    """

    def __init__(
        self,
        model: nn.Module,
        config: EncoderConfig,
        rotary: RotaryConfig | None,
        built_in: BuiltIn | None,
        sites: Sites,
        positions: Literal["keep", "replace"],
        per_stack: bool,
        indices: Literal["model", "mask"],
        shapes: Shapes | None = None,
    ) -> None:
        layout = layout_of(model, sites.targets)
        base = model if sites.targets is not None else base_of(model)
        padding = layout.padding_of(getattr(base, "config", None))
        _check_built_in(config, built_in, sites, positions, indices)
        alone = isinstance(config, PhaseFlowConfig | TableFlowConfig)
        if isinstance(config, PhaseFlowConfig | TableFlowConfig):
            config = built_in = fit_built_in(config, base, layout, padding)
        else:
            config = config.fitted(positions_of(base))
            if built_in is not None:
                built_in = fit_built_in(built_in, base, layout, padding)
        _check_compatible(model, config, sites, layout, indices)
        _check_rotary(config, rotary, layout, positions)
        relative = isinstance(config, RelativeConfig)
        if relative:
            check_relative(model, rotary, sites, layout, indices)
        additive = not isinstance(config, RotaryConfig) and not relative and not alone
        rotates = rotary is not None or isinstance(config, RotaryConfig)
        size = None if built_in is None else built_in_size(built_in, base, layout)
        plan = make_plan(base, layout, sites, additive, rotates, relative, size)
        super().__init__(
            config,
            build_encoders(config, built_in, plan, base, layout, per_stack, shapes),
            groups_of(plan, per_stack),
            [stack.name for stack in plan.stacks],
            build_rotary(config, rotary, plan, base),
        )
        self.rotary_config = rotary
        self.built_in_config = None if alone else built_in
        self.sites, self.positions = sites, positions
        self.per_stack, self.indices = per_stack, indices
        self.layout: Layout = layout
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
    def extension(self) -> Extension | None:
        """The numbers of positions in the model's config before and after `extend`, if it changed
        them.
        """
        return None if self.context.limit is None else self.context.limit.extension

    @property
    def encoder(self) -> nn.Module:
        """The encoder; where there are several (`per_stack`, sites of several sizes), use
        `encoders`.
        """
        if len(self.encoders) > 1:
            names = ", ".join(map(repr, self.encoders))
            raise AttachmentError(
                "This attachment has an encoder for each stack or size of its sites: use "
                f".encoders[…] with one of {names}."
            )
        for encoder in self.encoders.values():
            return encoder
        assert self.rotary is not None
        return self.rotary

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
        that adds nothing. Where sites differ in size, the smaller encodings are followed by zeros.
        """
        if not self.adds:
            return None
        columns = self.columns(
            {name: table[:length] for name, table in self.tables(length).items()}
        )
        dim = max(column.shape[-1] for column in columns)
        return torch.stack([F.pad(column, (0, dim - column.shape[-1])) for column in columns], 1)

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
        Times may be in any order and may repeat. Where they require gradients, as those of a
        learned clock do, gradients reach them.

        Args:
            times: [length] or [batch, length], for models of one stack.
            source: the same for the encoder of an encoder-decoder.
            target: the same for its decoder; by default, target tokens stand at index·Δ.
        """
        if isinstance(self.config, RelativeConfig):
            raise ArgumentError(
                "`at` needs an encoder that has times (flow, sinusoidal, learned, recurrent or "
                "rotary), but the attachment has relative positions, which count places."
            )
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

    def raise_limit(self, extension: Extension) -> None:
        """Let the model's config name another number of positions, until `detach`."""
        stack = self.context.built_in_stack()
        modules = [base_of(holder) for holder in self.context.holders] + [stack.module]
        self.context.limit = PositionLimit(
            [getattr(module, "config", None) for module in modules],
            stack.layout.limit,
            extension,
            of_weights=bool(self.layout.frames),
        )
        self.settings_changed()

    def lengthen_input(self) -> None:
        """Let a model that takes inputs of one length only take those of its longer table."""
        encoder = dict(self.encoders.items()).get("table")
        if self.layout.frames and isinstance(encoder, TableFlow):
            stack = self.context.built_in_stack()
            before = getattr(stack.module.config, stack.layout.limit)
            if before != encoder.longest:
                self.raise_limit((before, encoder.longest))

    def merge(self, length: int | None = None) -> None:
        """Write the longer table of sites="table" into the model itself, and remove the attachment.

        The model is then a plain one with more positions: its own `save_pretrained` writes a folder
        that loads without this package.

        Args:
            length: number of positions. Default: that of the extension.
        """
        if not self._installation.installed:
            raise AttachmentError(
                "`merge` needs an attachment that is part of its model, but this one was merged or "
                "detached before."
            )
        merge_table(self.context, self.context.live().encoders, length)
        self.detach()

    def detach(self) -> None:
        """Remove the attachment; the model is as it was before `attach`."""
        self._installation.remove()
        self.context.release_limit()
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
            "rotary": None
            if self.rotary_config is None
            else self.rotary_config.model_dump(mode="json"),
            **self._describe_built_in(),
            "extension": None if self.extension is None else list(self.extension),
            "sites": self.sites.model_dump(mode="json"),
            "positions": self.positions,
            "jitter": None if self.jitter is None else self.jitter.model_dump(mode="json"),
            "beyond": self.beyond,
            "per_stack": self.per_stack,
            "indices": self.indices,
        }

    def _describe_built_in(self) -> dict[str, Any]:
        """The settings of the encoder of built-in positions beside the other one."""
        config = self.built_in_config
        described = None if config is None else config.model_dump(mode="json")
        is_table = isinstance(config, TableFlowConfig)
        return {"phases": None if is_table else described, "table": described if is_table else None}

    def settings_changed(self) -> None:
        """Keep the description in the model's config up to date."""
        for holder in self.context.holders:
            if getattr(getattr(holder, "config", None), NAME, None) is not None:
                setattr(holder.config, NAME, self.describe())

    def extra_repr(self) -> str:
        baked = f", baked to {self.baked_length}" if self.baked_length is not None else ""
        rotary = ", rotary" if self.rotary_config is not None else ""
        beyond = f", beyond={self.beyond!r}" if self.beyond != "extrapolate" else ""
        jitter = f", jitter={self.jitter!r}" if self.jitter is not None else ""
        return (
            f"sites={self.sites.kind!r} ({self.num_sites}), positions={self.positions!r}{rotary}"
            f"{jitter}{beyond}{baked}"
        )


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
        layout.by_pattern
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


def _check_built_in(
    config: EncoderConfig, built_in: BuiltIn | None, sites: Sites, positions: str, indices: str
) -> None:
    """Refuse an encoder of built-in positions that does not fit the other settings."""
    kinds = {"phases": PhaseFlowConfig, "table": TableFlowConfig}
    for kind, settings in kinds.items():
        if isinstance(config, settings) != (sites.kind == kind):
            raise ArgumentError(
                f'A {settings.__name__} and sites="{kind}" go together, but `config` is a '
                f"{type(config).__name__} and `sites` is {sites.kind!r}."
            )
    alone = isinstance(config, PhaseFlowConfig | TableFlowConfig)
    name = "table" if isinstance(built_in, TableFlowConfig) else "phases"
    if alone and built_in is not None:
        raise ArgumentError(
            f"`{name}` must be left out where `config` is a {type(config).__name__} itself, but is "
            "given."
        )
    if built_in is not None and built_in.delta != config.delta:
        raise ArgumentError(
            f"`{name}` must have the Δ of the other encoder, {config.delta:g}, but have "
            f"{built_in.delta:g}."
        )
    if (alone or built_in is not None) and (positions, indices) != ("keep", "model"):
        what = "the rotary positions" if name == "phases" and sites.kind != "table" else "the table"
        raise ArgumentError(
            f'Encodings that are added to {what} of the model need positions="keep" and '
            f'indices="model", but these are {positions!r} and {indices!r}.'
        )


def _check_rotary(
    config: EncoderConfig, rotary: RotaryConfig | None, layout: Layout, positions: str
) -> None:
    """Refuse a rotary encoder that does not fit the other encoder or the model."""
    if rotary is not None and isinstance(config, RotaryConfig):
        raise ArgumentError(
            "`rotary` must be left out where `config` is a RotaryConfig itself, but is given."
        )
    if rotary is not None and rotary.delta != config.delta:
        raise ArgumentError(
            f"`rotary` must have the Δ of the other encoder, {config.delta:g}, but has "
            f"{rotary.delta:g}."
        )
    if rotary is None and not isinstance(config, RotaryConfig):
        return
    if layout.normalises_heads:
        raise ArgumentError(
            "A rotary encoder must rotate queries and keys after their normalisation, but the "
            "projections of this architecture come before it; choose a flow, which adds to the "
            "model's own rotary positions."
        )
    if positions == "keep" and layout.rotary:
        raise ArgumentError(
            'A rotary encoder needs positions="replace" in a model that is rotary itself, but'
            ' `positions` is "keep", which would rotate twice.'
        )
