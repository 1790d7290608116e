"""Any callable h(t, p) as a field, differentiated by autograd."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from .fields import Dynamics, Field, Reverse, StageBlock, Stages


class CallableField(Field):
    """Any h(t, p): a module, a function, a closure.

    The reverse sweep takes one vector-Jacobian product per stage.

    Args:
        dynamics: h.
        initial: p(start), of any shape.
        start: the time of `initial`.
        inputs: the differentiable tensors that h depends on; by default they are searched for.
    """

    own_weights = False

    def __init__(
        self,
        dynamics: Dynamics,
        initial: Tensor,
        start: float,
        inputs: tuple[Tensor, ...] | None = None,
    ) -> None:
        self._dynamics = dynamics
        self._shape = initial.shape
        # A copy, because `initial` may change before the first step is taken.
        self.initial = initial.detach().reshape(-1).clone()
        self.width = self.tape_width = self.initial.numel()
        self.constants = self.initial.new_empty(0, self.width)
        self.inputs = self._find_inputs(initial, start) if inputs is None else inputs
        self._versions = self._current_versions()

    def __call__(self, time: float, state: Tensor) -> Tensor:
        slope: object = self._dynamics(time, state.view(self._shape))
        if not isinstance(slope, Tensor):
            returned = repr(slope)
        elif slope.shape == self._shape and slope.dtype == state.dtype:
            return slope.reshape(-1)
        else:
            returned = f"{tuple(slope.shape)} of {slope.dtype}"
        raise ArgumentError(
            "`dynamics` must return a slope of the state's shape and type, "
            f"{tuple(self._shape)} of {state.dtype}, but returned {returned}."
        )

    def _find_inputs(self, initial: Tensor, start: float) -> tuple[Tensor, ...]:
        """Find the tensors that receive gradients.

        These are a module's parameters, or whatever a function refers to and computes with.
        """
        owner = (
            self._dynamics
            if isinstance(self._dynamics, nn.Module)
            else getattr(self._dynamics, "__self__", None)
        )
        if isinstance(owner, nn.Module):
            return tuple(parameter for parameter in owner.parameters() if parameter.requires_grad)
        self.spent = 1
        with torch.enable_grad():
            slope = self(start, initial.detach().reshape(-1))
        leaves = (*_referenced_leaves(self._dynamics), *_graph_leaves(slope))
        return tuple({id(leaf): leaf for leaf in leaves}.values())

    def enter(self) -> Tensor:
        return self.initial.clone()

    def stage(self, time: float, slope: Tensor, tape: Tensor) -> None:
        slope.copy_(self(time, tape))

    def combine(self, weights: Tensor, constants: Tensor, stages: Stages) -> Tensor:
        return weights @ stages.slopes

    def reverse(self) -> Reverse:
        return _CallableReverse(self)

    def unchanged(self) -> bool:
        return self._current_versions() == self._versions

    def _current_versions(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in self.inputs)


class _CallableReverse(Reverse):
    def __init__(self, field: CallableField) -> None:
        field.check_unchanged()
        self._field = field
        self._gradients: list[Tensor | None] = [None] * len(field.inputs)
        self._tape = field.initial
        self._times: list[float] = []

    def output_cotangents(self, moments: Tensor, weights: Tensor, block: StageBlock) -> Tensor:
        return weights.transpose(1, 2) @ moments

    def open_block(self, block: StageBlock) -> None:
        self._tape, self._times = block.tape, block.row_times().tolist()

    def stage(self, row: int, slope_cotangent: Tensor, outputs: Tensor, out: Tensor) -> None:
        with torch.enable_grad():
            state = self._tape[row].detach().requires_grad_()
            slope = self._field(self._times[row], state)
        if not slope.requires_grad:
            out.zero_()
            return
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            slope,
            (state, *self._field.inputs),
            slope_cotangent + outputs,
            retain_graph=True,
            allow_unused=True,
        )
        if gradients[0] is None:
            out.zero_()
        else:
            out.copy_(gradients[0])
        for i, gradient in enumerate(gradients[1:]):
            total = self._gradients[i]
            if gradient is not None:
                self._gradients[i] = gradient if total is None else total + gradient

    def gather(self, first_row: int, cotangents: Tensor) -> None:
        return None

    def close_block(self, slope_cotangents: Tensor) -> None:
        return None

    def finish(
        self, inner_cotangent: Tensor, state_cotangent: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        return inner_cotangent + state_cotangent, tuple(self._gradients)


def _referenced_leaves(function: object) -> Iterator[Tensor]:
    """Yield leaf tensors in a function's closure, its bound arguments or the globals it names."""
    if isinstance(function, functools.partial):
        yield from _referenced_leaves(function.func)
        values: list[object] = [*function.args, *function.keywords.values()]
    else:
        values = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        values += [scope[name] for name in getattr(code, "co_names", ()) if name in scope]
    for value in values:
        if isinstance(value, Tensor) and value.is_leaf and value.requires_grad:
            yield value
        elif isinstance(value, nn.Module):
            yield from (parameter for parameter in value.parameters() if parameter.requires_grad)


def _graph_leaves(result: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that a result was computed from."""
    if result.is_leaf and result.requires_grad:
        yield result
    seen: set[object] = set()
    pending = [result.grad_fn] if result.grad_fn is not None else []
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
