"""The times that an attachment was trained on."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, brief

UNKNOWN = -1
"""In place of a largest time: nothing was trained, or nothing was recorded."""


class TrainedTimes(nn.Module):
    """The largest time of a token of each stack in training.

    They are a buffer, so that every checkpoint holds them, and integers: the bits of float64
    numbers. Conversion to another type does not round integers, a mean of checkpoints takes those
    of the last one, and the bits of numbers ≥ 0 have the order of the numbers.

    Args:
        stacks: names of the stacks.

    Attributes:
        lost: weights were loaded that were saved before times were recorded.
    """

    bits: Tensor

    def __init__(self, stacks: Sequence[str]) -> None:
        super().__init__()
        self.stacks = tuple(stacks)
        self.lost = False
        self.register_buffer("bits", torch.full((len(self.stacks),), UNKNOWN, dtype=torch.int64))
        self._read: tuple[Tensor, int, dict[str, float]] | None = None

    def record(self, stack: str, last: float | Tensor) -> None:
        """Take note of a batch in training. There is no synchronisation with a device.

        Args:
            stack: name of the stack.
            last: the largest time of a token, or those of the rows.
        """
        slot = self.stacks.index(stack)
        if isinstance(last, Tensor) and (
            last.device.type != "cpu" or torch.compiler.is_compiling()
        ):
            bits = last.amax().view(torch.int64).to(self.bits.device, non_blocking=True)
            self.bits[slot].copy_(torch.maximum(self.bits[slot], bits))
            return
        bound = _bits(float(last.detach().amax() if isinstance(last, Tensor) else last))
        if self.bits.device.type != "cpu" or int(self.bits[slot]) < bound:
            self.bits[slot].clamp_(min=bound)

    def known(self) -> dict[str, float]:
        """The largest time by stack, without the stacks whose times are unknown."""
        bits = self.bits
        if bits.device.type == "meta":
            return {}
        version = UNKNOWN if bits.is_inference() else bits._version
        read = self._read
        if read is None or read[0] is not bits or read[1] != version or version == UNKNOWN:
            values = {
                stack: _number(value)
                for stack, value in zip(self.stacks, bits.tolist(), strict=True)
                if value >= 0
            }
            self._read = read = (bits, version, values)
        return dict(read[2])

    def set(self, value: object) -> None:
        """Replace what is known.

        Args:
            value: the largest time, for all stacks or by stack; None forgets it.
        """
        if value is None:
            value = {}
        by_stack: Mapping[str, Any] = (
            value if isinstance(value, Mapping) else dict.fromkeys(self.stacks, value)
        )
        for stack, time in by_stack.items():
            if stack not in self.stacks:
                raise ArgumentError(
                    f"`trained_range` must name stacks of the model ({', '.join(self.stacks)}), "
                    f"but names {brief(stack)}."
                )
            if (
                isinstance(time, bool)
                or not isinstance(time, (int, float))
                or not math.isfinite(time)
                or time < 0
            ):
                raise ArgumentError(
                    "`trained_range` must be the largest time in training, a finite number ≥ 0 "
                    f"(one, or one for each stack), but is {brief(time)}."
                )
        numbers = [
            _bits(float(by_stack[stack])) if stack in by_stack else UNKNOWN for stack in self.stacks
        ]
        with torch.no_grad():
            self.bits.copy_(torch.tensor(numbers, dtype=torch.int64))
        self.lost = False

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Accept weights that were saved before times were recorded."""
        if f"{prefix}bits" in state_dict:
            super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        return ", ".join(f"{stack}={time:g}" for stack, time in self.known().items()) or "unknown"


def _bits(number: float) -> int:
    """The bits of a float64 number as an integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _number(bits: int) -> float:
    """The number whose bits an integer is."""
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number
