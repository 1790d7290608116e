"""Dynamics h(t, p): a small network, and three that serve as references."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .errors import ArgumentError
from .ode import ACTIVATIONS, MLP, Field, fastest_mlp_field

ActivationName = Literal["tanh", "relu", "silu", "gelu", "softplus"]
REACH = 16.0
"""Default of `reach`."""
SENSITIVITY = 3.0
"""Initial deviation of what a state p of deviation 1 adds to a hidden unit, with a span."""
FLATTEST, STEEPEST = 2.0, 32.0
"""Smallest and largest initial slope of a hidden unit, per span."""


class MLPDynamics(nn.Module):
    """h(t, p) = W₂·[act(W₁·[p; τ] + b₁); τ] + b₂ - λp: two linear layers that also see the time.

    With `horizon=None` both layers see τ = t, as in the paper. Then h grows with t even if the
    nonlinearity is bounded: with Xavier weights × 0.5 and 128 dimensions, the largest |p| is in the
    thousands after 4,096 positions. With a horizon T they see τ = T·tanh(t/T), which is about t for
    t ≪ T and never exceeds T. Then |h| is bounded (with tanh), see `bounds`; but past about 2T the
    dynamics no longer change with time, so two passages far beyond the horizon differ only in p.

    A pull λ > 0 (0 in the paper) draws p back to the origin, so that with a horizon |p| is bounded
    for all times: p(t) comes to rest instead of leaving the region it was trained in. The solver
    has no fast implementation of dynamics with a pull.

    A span S scales the weights, so that training moves p at the same pace whatever the width and
    the unit of time: time enters as τ/S, and h is divided by S, its hidden sum also by the hidden
    width. An update of an optimiser that moves every weight by at most r, as Adam does with its
    learning rate, then moves p(t) by at most 2.5·`reach`·r·t/S within the span (with tanh, from
    h ≡ 0). Without a span the pace grows with the hidden width and with the square of the time.
    The hidden units start as steps in time, act(±a(τ/S - c)), with centres c all over the span and
    several slopes a: all smooth motions can be learned from the first update on. Units without a
    span start as almost the same function.

    Args:
        dim: size of p.
        hidden: width of the hidden layer; default: `dim`.
        activation: "tanh" (smooth, bounded), "relu" (the 2020 code; an adaptive solver needs more
            steps), "silu", "gelu" or "softplus".
        init_scale: initial weights are Xavier-normal times this; the paper starts small.
        zero_init: start with the last layer at zero, so that h ≡ 0 exactly; gradients reach the
            last layer at once and the first from the second update on.
        horizon: T of a bounded view of time; by default the layers see t itself.
        pull: λ, the rate at which p is drawn to the origin.
        span: S, the time that the inputs of a model cover; by default nothing is scaled.
        reach: how far each part of h moves p(S), in multiples of a change of its weights.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        activation: ActivationName = "tanh",
        init_scale: float = 0.5,
        zero_init: bool = False,
        horizon: float | None = None,
        pull: float = 0.0,
        span: float | None = None,
        reach: float = REACH,
    ) -> None:
        super().__init__()
        hidden = dim if hidden is None else hidden
        _check_size(dim=dim, hidden=hidden)
        if activation not in tuple(ACTIVATIONS):
            raise ArgumentError(
                f"`activation` must be one of {', '.join(ACTIVATIONS)}, but is {activation!r}."
            )
        if not (
            isinstance(init_scale, (int, float)) and math.isfinite(init_scale) and init_scale >= 0
        ):
            raise ArgumentError(f"`init_scale` must be a finite number ≥ 0, but is {init_scale!r}.")
        for name, value in (("horizon", horizon), ("span", span), ("reach", reach)):
            if (value is not None or name == "reach") and not (
                isinstance(value, (int, float)) and math.isfinite(value) and value > 0
            ):
                none = "" if name == "reach" else " or None"
                raise ArgumentError(
                    f"`{name}` must be a positive finite number{none}, but is {value!r}."
                )
        if not (isinstance(pull, (int, float)) and math.isfinite(pull) and pull >= 0):
            raise ArgumentError(f"`pull` must be a finite number ≥ 0, but is {pull!r}.")
        self.dim, self.hidden = dim, hidden
        self.activation = ACTIVATIONS[activation]
        self.init_scale, self.zero_init = init_scale, zero_init
        self.horizon, self.pull = horizon, pull
        self.span, self.reach = span, reach
        self.first = nn.Linear(dim + 1, hidden)
        self.second = nn.Linear(hidden + 1, dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        for layer in (self.first, self.second):
            nn.init.xavier_normal_(layer.weight, gain=self.init_scale)
            nn.init.zeros_(layer.bias)
        if self.zero_init:
            nn.init.zeros_(self.second.weight)
        if self.span is not None:
            self._spread_units()

    def _spread_units(self) -> None:
        """Let each hidden unit rise or fall around a time of its own, at a pace of its own."""
        count, like = self.hidden, self.first.bias
        centres = (torch.arange(count, device=like.device) + 0.5) / count
        ranks = (torch.randperm(count, device=like.device) + 0.5) / count
        steepest = STEEPEST if math.isfinite(self.activation.bound) else FLATTEST
        slopes = FLATTEST * (steepest / FLATTEST) ** ranks
        slopes = slopes * (1 - 2 * torch.randint(2, (count,), device=like.device))
        nn.init.normal_(self.first.weight, std=1 / math.sqrt(self.dim))
        self.first.weight[:, -1] = slopes
        self.first.bias.copy_(-slopes * centres)

    def view(self, time: float) -> float:
        """Return τ, what h sees of the time."""
        return time if self.horizon is None else self.horizon * math.tanh(time / self.horizon)

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        """Return the slope of p [..., dim] at time t."""
        _check_state(p, self.dim)
        seen: float | Tensor
        if isinstance(t, Tensor):
            seen = t if self.horizon is None else self.horizon * torch.tanh(t / self.horizon)
        else:
            seen = self.view(t)
        weight1, bias1, weight2, bias2 = (tensor.to(p.dtype) for tensor in self.field_inputs())
        clock = torch.as_tensor(seen, dtype=p.dtype, device=p.device).expand(*p.shape[:-1], 1)
        z = self.activation.forward(F.linear(torch.cat((p, clock), -1), weight1, bias1))
        slope = F.linear(torch.cat((z, clock), -1), weight2, bias2)
        return slope - self.pull * p if self.pull else slope

    def field(self, initial: Tensor) -> Field | None:
        """Return the solver's fast implementation, which excludes a pull and subclasses' own h."""
        if (
            self.pull
            or type(self).forward is not MLPDynamics.forward
            or type(self).view is not MLPDynamics.view
        ):
            return None
        weight1, bias1, weight2, bias2 = self.field_inputs()
        mlp = MLP(weight1, bias1, weight2, bias2, self.activation, self.view)
        implementation = fastest_mlp_field(self.dim, len(mlp.bias1), self.activation, initial)
        return implementation(initial, mlp)

    def field_inputs(self) -> tuple[Tensor, ...]:
        """Return the four weight tensors as h uses them: with the scales that a span implies, and
        in float32 if they are stored in half precision.
        """
        for name, layer in (("first", self.first), ("second", self.second)):
            if type(layer) is not nn.Linear:  # a subclass may do more than its weights tell
                raise ArgumentError(
                    f"`{name}` of the dynamics must be an nn.Linear, but is a "
                    f"{type(layer).__module__}.{type(layer).__name__}; bake the attachment before "
                    "quantising a model, and exclude it from what adapters replace (PEFT:"
                    ' exclude_modules=r".*floater.*"; modules_to_save=["floater"] trains it).'
                )
        tensors = (self.first.weight, self.first.bias, self.second.weight, self.second.bias)
        half = (torch.float16, torch.bfloat16)
        weight1, bias1, weight2, bias2 = (
            tensor.float() if tensor.dtype in half else tensor for tensor in tensors
        )
        if self.span is None:
            return weight1, bias1, weight2, bias2
        reach = self.reach / self.span
        return (
            _scale_columns(weight1, SENSITIVITY, 1 / self.span),
            bias1,
            _scale_columns(weight2, reach / self.hidden, reach / self.span),
            bias2 * reach,
        )

    @torch.no_grad()
    def bounds(self, initial: Tensor, time: float) -> tuple[float, float]:
        """Return upper bounds on the largest |h| at any time up to `time`, and on |p(time)|.

        They are finite for all times only with a bounded view of time and a bounded nonlinearity
        (tanh); |p| may then still grow in proportion to the time, unless there is a pull.
        """
        seen = abs(self.view(time))
        _, _, weight2, bias2 = self.field_inputs()
        weight = weight2.double().abs()
        if math.isfinite(self.activation.bound):
            from_hidden = weight[:, :-1].sum(1) * self.activation.bound
        else:
            from_hidden = torch.full_like(weight[:, 0], math.inf)
        slope = float((from_hidden + weight[:, -1] * seen + bias2.double().abs()).max())
        begin = float(initial.abs().max())
        if not self.pull:
            return slope, begin + slope * time
        decay = math.exp(-self.pull * time)
        limit = slope / self.pull
        return slope + self.pull * max(begin, limit), begin * decay + limit * (1 - decay)

    def extra_repr(self) -> str:
        return (
            f"activation={self.activation.name}, horizon={self.horizon}, pull={self.pull}, "
            f"span={self.span}, reach={self.reach:g}"
        )


class LinearDynamics(nn.Module):
    """h(t, p) = A·p + b. Its solution is known in closed form."""

    def __init__(self, dim: int, init_scale: float = 0.5) -> None:
        super().__init__()
        _check_size(dim=dim)
        self.dim = dim
        self.linear = nn.Linear(dim, dim)
        nn.init.xavier_normal_(self.linear.weight, gain=init_scale)
        nn.init.zeros_(self.linear.bias)

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        """Return the slope of p [..., dim]; it does not depend on t."""
        _check_state(p, self.dim)
        return F.linear(p, self.linear.weight.to(p.dtype), self.linear.bias.to(p.dtype))


class SinusoidDynamics(nn.Module):
    """The dynamics whose solution is the sinusoidal encoding (Eq. 7, with its factor corrected).

    d/dt sin(ω_j·t) = ω_j·cos(ω_j·t) with ω_j = c^(j/d), c = 1e-4: the factor is c^(+j/d); the paper
    prints c^(-j/d). Start from p(0) = (0, 1, 0, 1, …) with time in positions (Δ = 1). There are no
    parameters.
    """

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        _check_size(dim=dim)
        self.dim = dim
        self.register_buffer("frequencies", sinusoid_frequencies(dim), persistent=False)

    def initial(self) -> Tensor:
        """Return p(0) of the sinusoidal encoding, [dim]."""
        even = torch.arange(self.dim, device=self.frequencies.device) % 2 == 0
        return (~even).to(torch.get_default_dtype())

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        """Return the slope of p [..., dim]; it does not depend on p."""
        _check_state(p, self.dim)
        phase = self.frequencies * t
        slope = torch.empty_like(phase)
        slope[0::2] = torch.cos(phase[0::2])
        slope[1::2] = -torch.sin(phase[1::2])
        return (self.frequencies * slope).to(p.dtype).expand_as(p)


class ZeroDynamics(nn.Module):
    """h ≡ 0: p(t) stays where it starts."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        _check_size(dim=dim)
        self.dim = dim

    def forward(self, t: float | Tensor, p: Tensor) -> Tensor:
        """Return zeros of p's shape."""
        return torch.zeros_like(p)


def _scale_columns(weight: Tensor, inputs: float, time: float) -> Tensor:
    """Multiply the columns of a weight, and its last one, which multiplies the time."""
    return torch.cat((weight[:, :-1] * inputs, weight[:, -1:] * time), 1)


def _check_size(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"`{name}` must be a positive integer, but is {value!r}.")


def _check_state(p: Tensor, dim: int) -> None:
    if p.shape[-1:] != (dim,):
        raise ArgumentError(
            f"`p` must have the dynamics' size {dim} as its last dimension, but has shape "
            f"{tuple(p.shape)}."
        )


def sinusoid_frequencies(dim: int, base: float = 1e-4) -> Tensor:
    """Return ω_j = base^(2⌊j/2⌋/dim) for j = 0 … dim-1, float64; sine and cosine share one."""
    j = torch.arange(dim, dtype=torch.float64)
    return base ** ((j - j % 2) / dim)
