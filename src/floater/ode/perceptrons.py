"""The fastest way to step a perceptron."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .activations import Activation
from .compiled import CompiledField, serves
from .fields import Perceptron, PerceptronField


def perceptron(
    initial: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    activation: Activation,
    view: Callable[[float], float],
) -> Perceptron:
    """A field for h = W₂·act(W₁p + τ(t)·v₁ + b₁) + τ(t)·v₂ + b₂; see `Perceptron` for the arguments."""
    compiled = serves(second[0].shape[0], first[0].shape[0], activation, initial)
    return (CompiledField if compiled else PerceptronField)(initial, first, second, activation, view)
