"""The arguments of a forward call, as hooks see and change them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..context import HookContext

TABLES = "floater_tables"
"""Argument that passes an encoder-decoder's tables to its stacks."""
ENCODINGS_ARGUMENT = "floater_encodings"
"""Argument that passes a stack's encodings to its blocks."""

NewArguments = tuple[tuple[Any, ...], dict[str, Any]] | None
"""Changed positional and keyword arguments; None to leave them as they are."""


class ForwardArguments:
    """The arguments of a module's forward by name, however they were passed."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
        self._names = [
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]

    @property
    def first(self) -> str:
        """Name of the first argument."""
        return self._names[0]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments that were passed."""
        return {**dict(zip(self._names, args, strict=False)), **kwargs}


class EntryHook:
    """A hook that reads the arguments of a forward by name, and does nothing while the attachment
    is disabled.
    """

    def __init__(self, context: HookContext, module: nn.Module) -> None:
        self._context, self._arguments = context, ForwardArguments(module)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        if not self._context.enabled:
            return None
        return self._change(self._arguments.bind(args, kwargs), args, kwargs)

    def _change(
        self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewArguments:
        raise NotImplementedError
