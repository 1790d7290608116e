"""The architecture of a saved base model, read from its config before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from .layouts import LAYOUTS
from .table_rows import extended_stacks

_HUB_ARGUMENTS = ("cache_dir", "local_files_only", "revision", "subfolder", "token")


class SavedBase:
    """The architecture that the config of a saved base model names.

    Args:
        location: folder of the base, or its name on the Hub.
        config: its config; empty where it cannot be read.

    Attributes:
        architectures: names of the model classes it was saved from.
    """

    def __init__(self, location: str | Path, config: Mapping[str, Any]) -> None:
        self._location = location
        names = config.get("architectures")
        self.architectures: list[str] = (
            [str(name) for name in names] if isinstance(names, list) else []
        )
        model_type = config.get("model_type")
        self._model_type = model_type if isinstance(model_type, str) else None
        auto_map = config.get("auto_map")
        self._remote_classes = set(auto_map) if isinstance(auto_map, dict) else set()

    @classmethod
    def in_folder(cls, location: str | Path) -> SavedBase:
        """Read the config.json of a folder."""
        try:
            config = json.loads((Path(location) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            config = {}
        return cls(location, config if isinstance(config, dict) else {})

    @classmethod
    def on_hub(cls, location: str | Path, arguments: Mapping[str, Any]) -> SavedBase:
        """Read the config of a model on the Hub, with the `arguments` it is loaded with."""
        hub = {name: arguments[name] for name in _HUB_ARGUMENTS if name in arguments}
        try:
            config, _ = PreTrainedConfig.get_config_dict(str(location), **hub)
        except (OSError, ValueError):
            config = {}
        return cls(location, config)

    def fits(self, auto_class: Any) -> bool:
        """Whether a class can load this base; True where the config does not tell.

        transformers would fill a class of another architecture with random weights, and an Auto
        class refuses architectures it has no model class for.
        """
        if not self._model_type:
            return True
        model_type = getattr(getattr(auto_class, "config_class", None), "model_type", None)
        if model_type:
            return bool(model_type == self._model_type)
        classes = getattr(auto_class, "_model_mapping", None)
        if (
            classes is None
            or self._model_type not in CONFIG_MAPPING
            or auto_class.__name__ in self._remote_classes
        ):
            return True
        return CONFIG_MAPPING[self._model_type] in classes

    def own_limit(self, extension: Any) -> dict[str, int]:
        """Settings of a base whose table has another length than its config names, because the
        config of a checkpoint is that of a longer table; empty for all others.

        Args:
            extension: the numbers of positions before and after the extension, if there was one.
        """
        layout = LAYOUTS.get(self._model_type or "")
        before = extension[0] if isinstance(extension, list) and extension else None
        if layout is None or not layout.frames or not isinstance(before, int):
            return {}
        (stack,) = extended_stacks(layout).values()
        return {stack.limit: before}

    def mismatch(self, auto_class: Any) -> str:
        """The error message for a class that does not fit."""
        name = getattr(auto_class, "__name__", repr(auto_class))
        saved = (
            self.architectures[0] if self.architectures else f"a model of type {self._model_type!r}"
        )
        advice = (
            f"transformers.{saved}, or an Auto class that creates it"
            if self.architectures
            else "the class it was saved from"
        )
        return (
            f"`auto_class` must fit the model at {self._location}, saved as {saved}, but is {name};"
            f" use {advice}."
        )
