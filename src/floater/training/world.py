"""World size and rank of the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """The processes that share a run, as torch.distributed counts them.

    Attributes:
        size: number of processes.
        rank: number of this one, from 0.
    """

    size: int = 1
    rank: int = 0


ALONE = World()
