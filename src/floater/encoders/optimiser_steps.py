"""What flows need to know about the steps of optimisers."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol
from weakref import WeakSet

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


class Steps(Protocol):
    """A module that is told about steps; see the methods of `Flow`."""

    def check_step(self, parameter_ids: Set[int]) -> None:
        """Raise if an optimiser of these parameters must not step now."""

    def count_step(self, parameter_ids: Set[int]) -> None:
        """Count a step of an optimiser of these parameters."""


class OptimiserSteps:
    """Counts the steps of all optimisers, and tells modules about them.

    Attributes:
        count: number of steps so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._checked: WeakSet[Steps] = WeakSet()
        self._counted: WeakSet[Steps] = WeakSet()
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def tell_before(self, module: Steps, tell: bool) -> None:
        """Call `check_step` of a module before every step from now on, or no longer."""
        if tell:
            self._checked.add(module)
        else:
            self._checked.discard(module)

    def tell_after(self, module: Steps) -> None:
        """Call `count_step` of a module after every step from now on."""
        self._counted.add(module)

    def _before(self, optimiser: Optimizer, *_: object) -> None:
        if self._checked:
            parameter_ids = _parameter_ids(optimiser)
            for module in self._checked:
                module.check_step(parameter_ids)

    def _after(self, optimiser: Optimizer, *_: object) -> None:
        self.count += 1
        if self._counted:
            parameter_ids = _parameter_ids(optimiser)
            for module in self._counted:
                module.count_step(parameter_ids)


def _parameter_ids(optimiser: Optimizer) -> set[int]:
    return {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}


optimiser_steps = OptimiserSteps()
"""The one that all flows share."""
