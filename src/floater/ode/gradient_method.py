"""What the ways to differentiate a solution have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import ArgumentError
from .callable_field import CallableField
from .fields import Dynamics, Field
from .output import OutputRequest
from .stepper import Stepper


def solved_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that the solver works in: float32 for half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@runtime_checkable
class ProvidesField(Protocol):
    """Dynamics that have a faster implementation of the solver's steps than being called."""

    def field(self, initial: Tensor) -> Field | None:
        """Return the field for this initial state, or None if h has to be called."""

    def field_inputs(self) -> tuple[Tensor, ...]:
        """Return the current tensors behind `Field.inputs`, the inputs of a new autograd node."""


class GradientProblem:
    """The dynamics with their initial state.

    Args:
        dynamics: h(t, p).
        initial: p(start), of any shape.
        start: the time of `initial`.
        calls_dynamics: whether h itself is needed even where it provides a field.
    """

    def __init__(
        self, dynamics: Dynamics, initial: Tensor, start: float, calls_dynamics: bool
    ) -> None:
        self.dynamics, self.given_initial = dynamics, initial
        candidate: object = dynamics
        self._provider = candidate if isinstance(candidate, ProvidesField) else None
        with torch.autocast(initial.device.type, enabled=False):
            provided = None if self._provider is None else self._provider.field(self.initial)
            self._callable = (
                CallableField(dynamics, self.initial, start)
                if calls_dynamics or provided is None
                else None
            )
        field = self._callable if provided is None else provided
        assert field is not None
        self.field: Field = field

    @property
    def initial(self) -> Tensor:
        """p(start) in the type that the solver works in."""
        return self.given_initial.to(solved_dtype(self.given_initial.dtype))

    @property
    def called(self) -> CallableField:
        """h as a field that is called."""
        assert self._callable is not None
        return self._callable

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the current θ, the inputs of a new autograd node."""
        if self._callable is not None:
            return self._callable.inputs
        assert self._provider is not None
        return self._provider.field_inputs()


class GradientMethod(ABC):
    """A way to differentiate the states of one trajectory."""

    uses_tape: ClassVar[bool] = False
    """Whether gradients need the stages of every step."""
    calls_dynamics: ClassVar[bool] = False
    """Whether h is called even where it provides a field."""

    def __init__(self, problem: GradientProblem, stepper: Stepper) -> None:
        self._problem, self._stepper = problem, stepper

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be taken through states of this trajectory."""
        return True

    @abstractmethod
    def states(self, request: OutputRequest) -> Tensor:
        """Return differentiable states [len(request), size], in the order requested."""


def apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    """Call an autograd function that returns one tensor."""
    result: Tensor = function.apply(*arguments)
    return result


def just_after(time: float) -> float:
    """Return a time to advance to, so that a step begins at or before `time` and ends after it."""
    return time + 1e-12 * max(1.0, abs(time))


def refuse_second_order() -> None:
    """Raise in a backward pass that is to be differentiated itself.

    Gradients are enabled inside a backward pass only with create_graph=True.
    """
    if torch.is_grad_enabled():
        raise ArgumentError(
            'Second derivatives (create_graph=True) need gradient="autograd", but this solution '
            'was computed with another method; solve with gradient="autograd".'
        )


def full_precision(stepper: Stepper) -> AbstractContextManager[None]:
    """Disable autocast: the solver works in the type of the state."""
    return torch.autocast(stepper.field.initial.device.type, enabled=False)
