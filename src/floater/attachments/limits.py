"""The number of positions that the config of a model names, while another one holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Extension = tuple[int, int]
"""The numbers of positions before and after."""


class PositionLimit:
    """The number of positions in a model's configs, changed until `release`.

    Args:
        configs: the configs; those without the number stay as they are.
        name: its name there.
        extension: the numbers before and after.
        of_weights: a model has as many rows in its table, and takes inputs of this length only. So
            the number before holds while the attachment is disabled, and in saved folders.
    """

    def __init__(
        self, configs: Iterable[Any], name: str, extension: Extension, *, of_weights: bool
    ) -> None:
        self.extension, self._name, self._of_weights = extension, name, of_weights
        self._configs = list({id(config): config for config in configs}.values())
        self._set(*extension)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is switched on, as a copy of an attachment is enabled."""
        self.__dict__.update(state)
        self.switch(True)

    def switch(self, on: bool) -> None:
        """Let a number that weights depend on be the one after, or the one before."""
        if self._of_weights:
            self._set(*(self.extension if on else reversed(self.extension)))

    def release(self) -> None:
        """Restore the number before."""
        self._set(*reversed(self.extension))

    def _set(self, old: int, new: int) -> None:
        for config in self._configs:
            if getattr(config, self._name, None) == old:
                setattr(config, self._name, new)
