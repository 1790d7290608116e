"""Nonlinearities with the derivatives that a hand-written reverse sweep needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Activation:
    """A scalar nonlinearity.

    Attributes:
        name: the name in settings.
        forward: the function, differentiable.
        apply_: the function in place.
        derivative: its derivative as a function of what is recorded: the output if `from_output`,
            else the input.
        from_output: whether the output alone determines the derivative.
        bound: the largest absolute value the function can take; may be infinite.
    """

    name: str
    forward: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    from_output: bool
    bound: float = math.inf


_SOFTPLUS_LINEAR_FROM = 20.0  # torch's default: above it the function is the identity


def _tanh_derivative(z: Tensor) -> Tensor:
    return torch.addcmul(z.new_ones(()), z, z, value=-1)


def _softplus_derivative(x: Tensor) -> Tensor:
    return torch.where(x > _SOFTPLUS_LINEAR_FROM, torch.ones_like(x), torch.sigmoid(x))


def _silu_derivative(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _gelu_derivative(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, torch.tanh_, _tanh_derivative, True, bound=1.0),
        Activation("relu", torch.relu, torch.relu_, lambda z: (z > 0).to(z.dtype), True),
        Activation(
            "softplus", F.softplus, lambda x: x.copy_(F.softplus(x)), _softplus_derivative, False
        ),
        Activation("silu", F.silu, lambda x: F.silu(x, inplace=True), _silu_derivative, False),
        Activation("gelu", F.gelu, lambda x: x.copy_(F.gelu(x)), _gelu_derivative, False),
    )
}
