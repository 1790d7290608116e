"""A DataLoader whose order depends on seed and epoch alone."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


class EpochLoader(DataLoader[Any]):
    """A DataLoader that hands the epoch on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        follow = getattr(self.batch_sampler, "set_epoch", None)
        if follow is not None:
            follow(epoch)
