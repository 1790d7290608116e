"""What an attachment does to its model: hooks, exchanged classes, and how they are taken off
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import ArgumentError
from . import hooks
from .given import Given
from .model_positions import Own
from .projections import equip, restore
from .sites import Plan, StackPlaces

if TYPE_CHECKING:
    from .attachment import Attachment


class Installation:
    """The changes made to one model. A copy of the attachment alone (PEFT makes one to train it)
    shares them.

    Attributes:
        enabled: whether encodings are added.
        given: times set with `at`, if any.
        own: the model's own position encodings, by stack.
        holders: the model, in a tuple so that it does not become a part of its own part.
    """

    def __init__(self, plan: Plan) -> None:
        self.enabled = True
        self.given: Given | None = None
        self.own: dict[str, Own] = {}
        self.holders: tuple[nn.Module, ...] = ()
        self._plan = plan
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are enabled and stand at their own times, whatever the original was
        doing.
        """
        return {**self.__dict__, "enabled": True, "given": None}

    def install(self, attachment: Attachment, base: nn.Module) -> None:
        """Change the model; undone if anything fails."""
        hooks.check_free(self._plan)
        try:
            for stack in self._plan.stacks:
                self._install_positions(attachment, stack)
                self._install_hooks(attachment, stack)
            if len(self._plan.stacks) > 1:
                self._handles.append(hooks.pre(base, hooks.Root(attachment, base)))
            for layer in self.layers():
                handle = equip(layer) if not hasattr(layer, "slot") else None
                if handle is not None:
                    self._handles.append(handle)
        except Exception:
            self.remove()
            raise

    def _install_positions(self, attachment: Attachment, stack: StackPlaces) -> None:
        """Keep or replace the model's own positions."""
        replace = attachment.positions == "replace"
        if stack.layout.own:
            own = stack.module.get_submodule(stack.layout.own)
            self.own[stack.name] = Own(own, stack.layout.own_kind, replace)
        elif replace:
            raise ArgumentError(
                f'positions="replace" needs a layout that says where {attachment.model_type} keeps'
                ' its own positions; use positions="keep".'
            )
        if stack.layout.embeddings and replace:
            embeddings = stack.module.get_submodule(stack.layout.embeddings)
            self._handles.append(hooks.pre(embeddings, hooks.Unlimited(attachment, embeddings)))

    def _install_hooks(self, attachment: Attachment, stack: StackPlaces) -> None:
        """Hooks at both ends of a stack and at each of its blocks."""
        carrier = hooks.Carrier() if attachment.layout.carried else None
        entry = hooks.Entry(attachment, stack.name, stack.module, carrier)
        leave = hooks.Exit(attachment, stack.name, carrier)
        self._handles += [hooks.pre(stack.module, entry), hooks.post(stack.module, leave)]
        seen: dict[int, hooks.Block] = {}
        for block in stack.blocks:
            if id(block.module) not in seen:
                seen[id(block.module)] = hooks.Block(attachment, block.module)
                self._handles.append(hooks.pre(block.module, seen[id(block.module)]))
                if carrier is not None:
                    hooks.carry(block.module, carrier)
            seen[id(block.module)].by_call[block.number] = block.places

    def layers(self) -> Iterator[nn.Module]:
        """The projections that take encodings, each once."""
        seen = set()
        for stack in self._plan.stacks:
            for block in stack.blocks:
                for place in block.places:
                    if place.layer is not None and id(place.layer) not in seen:
                        seen.add(id(place.layer))
                        yield place.layer

    def switch(self, on: bool) -> None:
        """Add encodings, or leave the model as it was before."""
        self.enabled = on
        for own in self.own.values():
            own.switch.on = on

    def remove(self) -> None:
        """Take everything off; the model is what it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for stack in self._plan.stacks:
            for block in stack.blocks:
                hooks.uncarry(block.module)
        for layer in self.layers():
            if hasattr(layer, "slot"):
                restore(layer)
        for own in self.own.values():
            own.release()
        self.own.clear()
