"""What `floater extend` draws: the clocks of a rotary model, or a longer position table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..attachments import Attachment
from ..attachments.merging import longer_table
from ..encoders import PhaseFlow, TableFlow
from ..errors import RunError
from ..report.figures import grid, save
from ..room import check_memory

_LINES = 6
"""Clocks that a figure shows."""
_COMPONENTS = 3
"""Principal components of a table that a figure shows."""
_FAR = 1.5
"""Positions past a table that are so many times as large as its largest row are out of range."""
_COPIES = 8
"""Numbers of 8 bytes that are in memory at a time for each number of a table."""


@torch.no_grad()
def draw_clocks(encoder: PhaseFlow, length: int, trained: int, path: Path) -> None:
    """Draw how far each clock has run, and how fast it runs, by position.

    Args:
        encoder: the encoder of a rotary model's phases.
        length: number of positions.
        trained: number of positions of the model itself.
        path: of the figure.
    """
    clocks = encoder.clocks(length + 1).numpy()
    chosen = np.unique(np.linspace(0, encoder.dim - 1, _LINES).round().astype(int))
    figure, (left, right) = grid(2)
    for place in chosen:
        period = 2 * np.pi / float(encoder.frequencies[place])
        label = f"turns once in {period:,.0f} tokens"
        left.plot(clocks[:, place], label=label)
        right.plot(np.diff(clocks[:, place]), label=label)
    for axis, title in ((left, "clock, in tokens"), (right, "speed of the clock")):
        axis.axvline(trained, linestyle="--", color="grey", linewidth=1)
        axis.set_xlabel("position; dashed: the length of the model")
        axis.set_title(title, fontsize=11)
        axis.grid(alpha=0.3)
    left.legend(fontsize=7)
    save(figure, path)


@dataclass(frozen=True)
class TablePath:
    """A position table and what comes after it.

    Attributes:
        table: the positions [length, dim].
        fit: the waves at all of them, or None without waves.
        trained: number of rows of the model's own table.
    """

    table: np.ndarray
    fit: np.ndarray | None
    trained: int

    @classmethod
    @torch.no_grad()
    def of(cls, attached: Attachment, length: int) -> TablePath:
        """The table of an extended model."""
        encoder = attached.encoders["table"]
        context = attached.context
        stack = context.built_in_stack()
        weight = stack.positions_module.weight
        if not isinstance(encoder, TableFlow) or not isinstance(weight, torch.Tensor):
            raise RunError("The attachment must have a position table, but has none.")
        check_memory(
            _COPIES * 8.0 * length * weight.shape[1],
            f"A position table of {length:,} rows",
            "choose a smaller `--length`",
        )
        table = longer_table(encoder, weight[context.table_offset(stack) :], length)
        fit = None
        if encoder.config.scaling == "waves":
            fit = encoder.all_waves(length).double().numpy()
        return cls(table.double().numpy(), fit, encoder.length)

    def describe(self) -> str:
        """A line about sizes and steps, within the table and past it."""
        sizes = np.linalg.norm(self.table, axis=1)
        steps = np.linalg.norm(np.diff(self.table, axis=0), axis=1)
        text = (
            f"largest |p| {sizes[: self.trained].max():.2f} within the table of {self.trained:,} "
            f"rows, {sizes[self.trained :].max():.2f} past it; largest step between two positions "
            f"{steps[: self.trained - 1].max():.2f} and {steps[self.trained - 1 :].max():.2f}"
        )
        if self.fit is not None:
            inner = self.table[self.trained // 8 : self.trained - self.trained // 8]
            left = ((inner - self.fit[self.trained // 8 :][: len(inner)]) ** 2).sum()
            share = 1 - left / ((inner - inner.mean(0)) ** 2).sum()
            text += f"; the waves explain {100 * share:.0f} % of its inner rows"
        return text

    def warning(self) -> str | None:
        """A line if positions leave the range of the table."""
        sizes = np.linalg.norm(self.table, axis=1)
        limit = _FAR * sizes[: self.trained].max()
        past = np.flatnonzero(sizes[self.trained :] > limit)
        if not len(past):
            return None
        return (
            f"From position {self.trained + int(past[0]):,} on, encodings are larger than {_FAR:g} "
            "times the largest row of the table: the model has never seen such positions. Train "
            "longer, or choose another --scaling."
        )

    def draw(self, path: Path) -> None:
        """Draw the main directions of the table, and how large its rows and errors are."""
        centred = self.table - self.table[: self.trained].mean(0)
        _, _, directions = np.linalg.svd(centred[: self.trained], full_matrices=False)
        figure, (left, right) = grid(2)
        for number, direction in enumerate(directions[:_COMPONENTS], 1):
            left.plot(centred @ direction, linewidth=1, label=f"principal component {number}")
        right.plot(np.linalg.norm(self.table, axis=1), label="|p|")
        if self.fit is not None:
            error = np.linalg.norm((self.table - self.fit)[: self.trained], axis=1)
            right.plot(error, label="distance of the fitted waves")
        for axis, title in ((left, "path of the positions"), (right, "size of the positions")):
            axis.axvline(self.trained, linestyle="--", color="grey", linewidth=1)
            axis.set_xlabel("position; dashed: the length of the model's own table")
            axis.set_title(title, fontsize=11)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)
        save(figure, path)
