"""Whether weights have changed since a solution was computed from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import StaleTrajectoryError
from ..ode import runs_ahead
from .optimiser_steps import optimiser_steps

_CALLS_PER_CHECK = 16


class WeightComparison:
    """Compares weights with copies of them, bit for bit.

    On the CPU the answer is there at once. On another device the host would have to wait for it in
    every forward pass. There the counters decide that PyTorch increases with every change in place,
    and, since fused optimisers do not increase them, the number of optimiser steps. Both miss
    changes through `.data`, so the device compares all the same, and the host looks at the results
    after some calls.

    Args:
        tensors: the weights.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        untracked = any(tensor.is_inference() for tensor in tensors)
        self._waits = untracked or not any(map(runs_ahead, tensors))
        self._counters = [] if self._waits else _counters(tensors)
        self._missed: Tensor | None = None
        self._calls = 0

    def equal(self, tensors: Sequence[Tensor], copies: Sequence[Tensor], *, waits: bool) -> bool:
        """Return whether the weights equal their copies, as far as can be told without waiting.

        Args:
            tensors: the weights.
            copies: of them.
            waits: wait for the comparison on every device.
        """
        pairs = list(zip(tensors, copies, strict=True))
        if waits or self._waits:
            return all(torch.equal(tensor, copy) for tensor, copy in pairs)
        if _counters(tensors) != self._counters:
            return False
        with torch.no_grad():
            differs = torch.stack([(tensor != copy).any() for tensor, copy in pairs]).any()
            self._missed = differs if self._missed is None else self._missed | differs
        self._calls += 1
        if self._calls % _CALLS_PER_CHECK == 0:
            self.check()
        return True

    def check(self) -> None:
        """Raise if weights had changed although their counters had not."""
        missed, self._missed = self._missed, None
        if missed is not None and bool(missed):
            raise StaleTrajectoryError(
                "The weights of a flow must be changed in place (under torch.no_grad()), but were "
                "changed through `.data`, which PyTorch does not count, so that forward passes used"
                " encodings of the weights before; set `floater.encoders.Flow.compares_weights = "
                "True`, or change the weights themselves."
            )


def _counters(tensors: Sequence[Tensor]) -> list[int]:
    """Numbers that change with the weights. Those of frozen weights do not depend on optimisers."""
    trained = any(tensor.requires_grad for tensor in tensors)
    return [optimiser_steps.count if trained else 0, *(tensor._version for tensor in tensors)]
