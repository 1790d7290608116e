"""The changes that an attachment makes to its model, and how they are undone."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from ..errors import ArgumentError, AttachmentError
from . import hooks
from .context import HookContext
from .model_positions import ModelPositions
from .projections import equip, restore
from .sites import SitePlan, StackSites


class Installation:
    """Hooks and swapped classes in one model. A copy of the attachment alone shares them."""

    def __init__(self, context: HookContext) -> None:
        self.context = context
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

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
        except Exception:
            self.remove()
            raise

    def remove(self) -> None:
        """Undo all changes; the model is as it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for stack in self.context.plan.stacks:
            for block in stack.blocks:
                hooks.uncarry(block.module)
        for layer in self.context.plan.projections():
            if hasattr(layer, "slot"):
                restore(layer)
        for model_positions in self.context.model_positions.values():
            model_positions.release()
        self.context.model_positions.clear()

    def _install_positions(self, stack: StackSites, replace: bool, model_type: str) -> None:
        layout = stack.layout
        if layout.positions:
            module = stack.module.get_submodule(layout.positions)
            self.context.model_positions[stack.name] = ModelPositions(
                module, layout.positions_kind, replace
            )
        elif replace:
            raise ArgumentError(
                'positions="replace" needs a layout with the module of the built-in positions, but'
                f' that of {model_type} has none; use positions="keep".'
            )
        if layout.embeddings and replace:
            embeddings = stack.module.get_submodule(layout.embeddings)
            self._before(embeddings, hooks.EmbeddingsEntry(self.context, embeddings))

    def _install_hooks(self, stack: StackSites) -> None:
        """Install hooks at both ends of a stack and at the entry of its blocks."""
        carrier = hooks.Carrier() if self.context.layout.drops_arguments else None
        self._before(
            stack.module, hooks.StackEntry(self.context, stack.name, stack.module, carrier)
        )
        self._after(stack.module, hooks.StackExit(self.context, stack.name, carrier))
        entries: dict[int, hooks.BlockEntry] = {}
        for block in stack.blocks:
            if id(block.module) not in entries:
                entry = hooks.BlockEntry(self.context, block.module)
                entries[id(block.module)] = entry
                self._before(block.module, entry)
                if carrier is not None:
                    hooks.carry(block.module, carrier)
            entries[id(block.module)].points_by_call[block.number] = block.points

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
