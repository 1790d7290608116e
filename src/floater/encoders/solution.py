"""A solved trajectory with the weights it belongs to."""

from __future__ import annotations

from torch import Tensor

from ..ode import Trajectory
from .weight_comparison import WeightComparison


class Solution:
    """A trajectory with copies of the weights it belongs to.

    Args:
        trajectory: of these weights.
        tensors: the weights.
        initial: the learned part of p(start).
        start: p(start), where the trajectory begins.
    """

    def __init__(
        self, trajectory: Trajectory, tensors: list[Tensor], initial: Tensor, start: Tensor
    ) -> None:
        self.trajectory = trajectory
        self.weights = [tensor.detach().clone() for tensor in tensors]
        self._tensors, self._initial, self._start = tensors, initial, start
        self._comparison = WeightComparison(tensors)
        self._table: Tensor | None = None
        self._table_version = 0

    def table(self) -> Tensor | None:
        """Return the encodings of the first positions that are kept, unless somebody has written
        into them.
        """
        table = self._table
        return table if table is not None and table._version == self._table_version else None

    def keep(self, table: Tensor) -> None:
        """Keep the encodings of the first positions."""
        self._table, self._table_version = table, table._version

    def finish(self) -> list[float]:
        """Return lengths of steps to try in the next solve; raise if this one served changed
        weights.
        """
        self._comparison.check()
        return self.trajectory.next_plan

    def fits(self, tensors: list[Tensor]) -> bool:
        """Return whether these are the same tensors, with the same shape, type and device.

        Gradients must also be available for those that require them.
        """
        if not self.trajectory.unchanged:  # also after an optimiser step of length zero
            return False
        if self._start.requires_grad != self._initial.requires_grad:
            return False
        return len(tensors) == len(self.weights) and all(
            tensor is original
            and tensor.shape == weight.shape
            and tensor.dtype == weight.dtype
            and tensor.device == weight.device
            and (self.trajectory.differentiable or not tensor.requires_grad)
            for tensor, original, weight in zip(tensors, self._tensors, self.weights, strict=True)
        )

    def serves(self, tensors: list[Tensor]) -> bool:
        """Return whether it may still be used although the weights may have changed."""
        return self.fits(tensors) and (
            self.trajectory.own_weights or self.equals(tensors, waits=True)
        )

    def equals(self, tensors: list[Tensor], *, waits: bool) -> bool:
        """Return whether these are the weights of this solution, bit for bit.

        Args:
            tensors: the weights.
            waits: wait for the comparison on every device.
        """
        return self._comparison.equal(tensors, self.weights, waits=waits)
