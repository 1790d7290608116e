"""The requested times of many steps at once: with the places of their polynomials, for the kernel,
or as rows of equal length, one per step, for a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import to_device
from .stepper import Stepper

_LARGEST_PADDING = 4  # times as many rows as there are times


@dataclass(frozen=True)
class OutputPlaces:
    """The times inside some consecutive steps, each with the place of its polynomial.

    Attributes:
        times: which of all times they are.
        places: number of the first row of the polynomial that a time belongs to, among the rows of
            these steps [n].
        powers: 1, θ, θ² … [n, degree + 1], float32.
    """

    times: slice
    places: Tensor
    powers: Tensor

    @classmethod
    def of(
        cls, stepper: Stepper, ascending: NDArray[np.float64], first: int, count: int
    ) -> OutputPlaces | None:
        """Find the times inside `count` steps from number `first` on; None if there are none."""
        ends, terms = (
            np.asarray(stepper.grid[first : first + count + 1]),
            stepper.tableau.degree + 1,
        )
        begin = int(np.searchsorted(ascending, ends[0], side="right")) if first else 0
        end = int(np.searchsorted(ascending, ends[-1], side="right"))
        if begin == end:
            return None
        steps = np.searchsorted(ends[1:], ascending[begin:end], side="left")
        lengths = np.asarray(stepper.lengths[first : first + count])
        theta = (ascending[begin:end] - ends[steps]) / lengths[steps]
        powers = np.vander(theta, terms, increasing=True).astype(np.float32)
        places = torch.from_numpy(terms * steps)
        return cls(slice(begin, end), places, torch.from_numpy(powers))


@dataclass(frozen=True)
class OutputRows:
    """The times inside some consecutive steps, padded to the same number for each step.

    Attributes:
        steps: numbers of the steps that have times inside, counted from the first of the steps [n].
        powers: 1, θ, θ² … of the times [n, R, degree + 1]; 0 for padding.
        times: numbers of the times [n · R]; padding repeats another time of the step.
        places: which of the n · R rows are no padding, in the order of the times.
    """

    steps: NDArray[np.int64]
    powers: NDArray[np.float64]
    times: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(
        cls, stepper: Stepper, ascending: NDArray[np.float64], first: int, count: int
    ) -> OutputRows | None:
        """Arrange the times inside `count` steps from number `first` on; None if there are none.

        Args:
            stepper: the steps.
            ascending: all times.
            first: number of the first step.
            count: number of steps.
        """
        ends = np.asarray(stepper.grid[first + 1 : first + count + 1])
        after = np.searchsorted(ascending, ends, side="right")
        before = np.searchsorted(ascending, [stepper.grid[first]], side="right") * (first > 0)
        begins = np.concatenate((before, after[:-1]))
        steps = np.nonzero(after > begins)[0]
        if not len(steps):
            return None
        begins, sizes = begins[steps], (after - begins)[steps]
        column = np.arange(int(sizes.max()))
        times = begins[:, None] + np.minimum(column, sizes[:, None] - 1)
        grid, lengths = np.asarray(stepper.grid), np.asarray(stepper.lengths)
        theta = (ascending[times] - grid[first + steps, None]) / lengths[first + steps, None]
        valid = column < sizes[:, None]
        powers = theta[..., None] ** np.arange(stepper.tableau.degree + 1) * valid[..., None]
        return cls(steps, powers, times.reshape(-1), np.nonzero(valid.reshape(-1))[0])

    @property
    def wasteful(self) -> bool:
        """Whether most rows are padding, because nearly all times are inside a few of the steps."""
        return len(self.times) > _LARGEST_PADDING * (len(self.places) + len(self.steps))

    def on_device(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the steps and the powers, on the device of a tensor."""
        return index(self.steps, like), to_device(self.powers, like)


def index(numbers: NDArray[np.int64], like: Tensor) -> Tensor:
    """Copy numbers of rows to the device of a tensor."""
    return to_device(numbers, like, torch.int64)
