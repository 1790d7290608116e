"""The changes that an attachment makes to its model, and how they are undone."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from ..errors import ArgumentError, AttachmentError
from . import hooks
from .context import HookContext
from .layouts import find_modules
from .model_positions import ModelPositions, RelativePositions
from .phases import equip_phases, restore_phases
from .planning import submodule
from .projections import equip, restore
from .relative_attention import AttentionSwitch, equip_attention
from .sites import SitePlan, StackSites
from .tables import equip_table, restore_table


class Installation:
    """Hooks and swapped classes in one model. A copy of the attachment alone shares them."""

    def __init__(self, context: HookContext) -> None:
        self.context = context
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.installed = False
        """Whether the model is changed at present."""

    def install(self, base: nn.Module, positions: Literal["keep", "replace"]) -> None:
        """Change the model; undone if anything fails.

        Args:
            base: the base model.
            positions: keep or replace its built-in positions.
        """
        plan = self.context.plan
        _check_free(plan)
        try:
            for stack in plan.stacks:
                self._install_positions(stack, positions == "replace", type(base).__name__)
                self._install_hooks(stack)
            if len(plan.stacks) > 1:
                self._before(base, hooks.ModelEntry(self.context, base))
            for layer in plan.projections():
                handle = equip(layer) if not hasattr(layer, "slot") else None
                if handle is not None:
                    self._handles.append(handle)
            self._install_attention()
            self.installed = True
        except Exception:
            self.remove()
            raise

    def remove(self) -> None:
        """Undo all changes; the model is as it was before."""
        self.installed = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for stack in self.context.plan.stacks:
            for block in stack.blocks:
                hooks.uncarry(block.module)
            if stack.built_in is not None:
                restore_phases(stack.positions_module)
                restore_table(stack.positions_module)
        for layer in self.context.plan.projections():
            if hasattr(layer, "slot"):
                restore(layer)
        for attention in self.context.plan.attentions():
            if hasattr(attention, "slot"):
                del attention.slot
        if self.context.attention is not None:
            self.context.attention.release()
            self.context.attention = None
        for model_positions in self.context.model_positions.values():
            model_positions.release()
        for relative in self.context.relative_positions:
            relative.release()
        self.context.model_positions.clear()
        self.context.relative_positions.clear()

    def _install_positions(self, stack: StackSites, replace: bool, model_type: str) -> None:
        layout = stack.layout
        module = submodule(stack.module, layout.positions) if layout.positions else None
        if module is not None:
            self.context.model_positions[stack.name] = ModelPositions(
                module, layout.positions_kind, replace
            )
        if replace and layout.relative:
            self.context.relative_positions.append(
                RelativePositions(
                    *(
                        [module for path in paths for module in find_modules(stack.module, path)]
                        for paths in (layout.relative, layout.relative_weights)
                    )
                )
            )
        if replace and module is None and not layout.relative:
            raise ArgumentError(
                'positions="replace" needs a layout with the module of the built-in positions, but'
                f' that of {model_type} has none; use positions="keep".'
            )
        if layout.embeddings and (replace or stack.built_in is not None):
            embeddings = stack.module.get_submodule(layout.embeddings)
            self._before(embeddings, hooks.EmbeddingsEntry(self.context, embeddings))

    def _install_hooks(self, stack: StackSites) -> None:
        """Install hooks at both ends of a stack and at the entry of its blocks."""
        drops = self.context.layout.drops_arguments
        carrier = hooks.Carrier() if drops or stack.built_in is not None else None
        self._before(
            stack.module, hooks.StackEntry(self.context, stack.name, stack.module, carrier)
        )
        if stack.built_in is not None and carrier is not None:
            equip_built_in = equip_phases if stack.built_in_kind == "phases" else equip_table
            equip_built_in(stack.positions_module, carrier)
        self._after(stack.module, hooks.StackExit(self.context, stack.name, carrier))
        entries: dict[int, hooks.BlockEntry] = {}
        for block in stack.blocks:
            if id(block.module) not in entries:
                entry = hooks.BlockEntry(self.context, block.module)
                entries[id(block.module)] = entry
                self._before(block.module, entry)
                if drops and carrier is not None:
                    hooks.carry(block.module, carrier)
            entry = entries[id(block.module)]
            points = block.points
            if self.context.plan.at_input and not self.context.layout.shared_blocks:
                entry.input_points = tuple(
                    point for point in stack.blocks[0].points if point.projection is None
                )
                points = tuple(point for point in points if point.projection is not None)
            entry.points_by_call[block.number] = points

    def _install_attention(self) -> None:
        """Let the self-attentions of the plan take relative positions."""
        plan = self.context.plan
        attentions = list(plan.attentions())
        for attention in attentions:
            equip_attention(attention)
        if attentions:
            holders = [*attentions, *(stack.module for stack in plan.stacks)]
            configs: list[Any] = [module.config for module in holders]
            self.context.attention = AttentionSwitch({id(each): each for each in configs}.values())

    def _before(self, module: nn.Module, hook: Any) -> None:
        """Call `hook(module, args, kwargs)` before the module's forward."""
        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _after(self, module: nn.Module, hook: Any) -> None:
        """Call `hook(module, args, kwargs, output)` after the module's forward; where that fails,
        the output is None.
        """
        self._handles.append(module.register_forward_hook(hook, with_kwargs=True, always_call=True))


def _check_free(plan: SitePlan) -> None:
    """Refuse a second attachment, also one that was made through the model's base or a model around
    it.
    """
    for stack in plan.stacks:
        if any(
            isinstance(hook, hooks.StackEntry) for hook in stack.module._forward_pre_hooks.values()
        ):
            raise AttachmentError(
                f"The {stack.name} has an attachment already, made through its base or a model "
                "around it; call its detach() first."
            )
