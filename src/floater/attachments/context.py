"""What hooks know of the model they are installed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from ..errors import ArgumentError
from .adapters import active_module, check_adapters
from .layouts import Layout
from .limits import PositionLimit
from .model_positions import ModelPositions, RelativePositions
from .projections import PositionedLinear
from .relative_attention import AttentionSwitch
from .site_encoders import SiteEncoders
from .sites import InsertionPoint, SitePlan, StackSites
from .stack_encodings import StepSlots
from .token_positions import CustomTimes, IndexRange, TokenPositions

NAME = "floater"
"""Name under which the attachment is a submodule of its model."""


class HookContext:
    """What hooks know of the model they are installed in. A copy of the attachment alone (PEFT
    makes one to train it) shares it.

    Attributes:
        plan: the sites.
        layout: where the architecture has them.
        indices: whether tokens are numbered as the model does, or by the attention mask.
        padding: id of the padding token.
        enabled: whether encodings are added.
        custom_times: times set with `Attachment.at`, if any.
        model_positions: the model's built-in positions, by stack.
        relative_positions: its relative positions that were removed.
        attention: its attention implementation, which was replaced for relative positions; if so.
        limit: the number of positions in its config, which was changed; if so.
        holders: the model, in a tuple so that it does not become a submodule of its submodule.
    """

    def __init__(
        self,
        encoders: SiteEncoders,
        plan: SitePlan,
        layout: Layout,
        indices: Literal["model", "mask"],
        padding: int | None,
    ) -> None:
        self._encoders = (encoders,)
        self.plan, self.layout, self.indices, self.padding = plan, layout, indices, padding
        self.enabled = True
        self.custom_times: CustomTimes | None = None
        self.model_positions: dict[str, ModelPositions] = {}
        self.relative_positions: list[RelativePositions] = []
        self.attention: AttentionSwitch | None = None
        self.limit: PositionLimit | None = None
        self.holders: tuple[nn.Module, ...] = ()
        self._step_slots: dict[str, StepSlots | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are enabled and have no custom times, whatever the original has."""
        return {**self.__dict__, "enabled": True, "custom_times": None, "_step_slots": {}}

    def live(self) -> SiteEncoders:
        """The attachment whose weights are used now: the original, or the copy that PEFT trains."""
        for holder in self.holders:
            module = active_module(holder._modules.get(NAME))
            if isinstance(module, SiteEncoders) and getattr(module, "context", None) is self:
                return module
        return self._encoders[0]

    def check_adapters(self) -> None:
        """Refuse PEFT adapters that are incompatible with an attachment."""
        for holder in self.holders:
            if not getattr(holder, "peft_config", None):
                continue
            rotated = [point.projection for point in self.plan.points() if point.rotated]
            check_adapters(
                holder,
                self.plan.projections(),
                [layer for layer in rotated if layer is not None],
            )

    def stack(self, name: str) -> StackSites:
        """The insertion points of a stack."""
        return next(stack for stack in self.plan.stacks if stack.name == name)

    def built_in_stack(self) -> StackSites:
        """The stack whose built-in positions take encodings."""
        for stack in self.plan.stacks:
            if stack.built_in is not None:
                return stack
        raise ArgumentError("The model's built-in positions must take encodings, but take none.")

    def has_sites(self, stack: str) -> bool:
        """Whether a stack has sites."""
        sites = self.stack(stack)
        return sites.built_in is not None or any(block.points for block in sites.blocks)

    def step_slots(self, stack: str) -> StepSlots | None:
        """The slots of a stack, if each is that of a projection of its own with encodings of the
        stack's tokens; otherwise None.
        """
        if stack not in self._step_slots:
            points = [point for block in self.stack(stack).blocks for point in block.points]
            plain = not self.layout.shared_blocks and all(map(_is_plain, points))
            self._step_slots[stack] = StepSlots(points) if plain and points else None
        return self._step_slots[stack]

    def end_step(self, stack: str) -> None:
        """Forget what the projections of a stack were to take in a step of generation."""
        slots = self._step_slots.get(stack)
        if slots is not None:
            slots.end()

    def table_offset(self, stack: StackSites) -> int:
        """Rows of the model's built-in position table before that of position 0."""
        return self.layout.table_offset(stack.layout, self.padding)

    def check_model_positions(self, stack: str, positions: TokenPositions) -> None:
        """Raise if the model keeps its built-in table and it ends before these positions."""
        model_positions = self.model_positions.get(stack)
        if model_positions is None or model_positions.kind != "learned" or model_positions.replace:
            return
        if self.stack(stack).built_in is not None:  # its table goes on
            return
        offset = self.table_offset(self.stack(stack))
        limit = model_positions.limit(offset)
        may_exceed = positions.bound is None or (limit is not None and positions.bound > limit)
        if isinstance(positions.index, IndexRange) or (
            may_exceed and not torch.compiler.is_compiling()
        ):
            model_positions.check(positions.table_length_without_padding(), offset)

    def set_enabled(self, enabled: bool) -> None:
        """Add encodings, or leave the model as it was before `attach`."""
        self.enabled = enabled
        for model_positions in self.model_positions.values():
            model_positions.switch.on = enabled
        for relative in self.relative_positions:
            relative.switch.on = enabled
        if self.attention is not None:
            self.attention.set(enabled)
        if self.limit is not None:
            self.limit.switch(enabled)

    @contextmanager
    def own_limit(self) -> Iterator[None]:
        """Inside, the config names the positions that the weights of the model have."""
        if self.limit is not None:
            self.limit.switch(False)
        try:
            yield
        finally:
            if self.limit is not None:
                self.limit.switch(self.enabled)

    def release_limit(self) -> None:
        """Let the config name the number of positions that it named before."""
        if self.limit is not None:
            self.limit.release()
            self.limit = None


def _is_plain(point: InsertionPoint) -> bool:
    """Whether a point is a projection of one letter, of a kind that takes a vector."""
    return (
        type(point.projection) is PositionedLinear
        and point.tokens == "stack"
        and len(point.letters) == 1
        and point.fused is None
        and not point.rotated
    )
