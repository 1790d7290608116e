"""Typed settings: checked when made, unknown keys refused with the nearest known one."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ConfigError


class Config(BaseModel):
    """Base of all settings. Frozen; raises :class:`ConfigError` in one line instead of pydantic's report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(type(self), error)) from None


def explain(config: type[BaseModel], error: ValidationError) -> str:
    """One line for the first thing that is wrong."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or config.__name__
    known = list(config.model_fields)
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return f"{key}: {inner}{more}" if first["loc"] else f"{inner}{more}"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}."
        return f"{config.__name__} has no key `{key}`; {hint}{more}"
    if first["type"] == "missing":
        return f"{config.__name__} needs a value for `{key}`, but none was given.{more}"
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"`{key}` of {config.__name__}: {reason}, but is {first['input']!r}.{more}"
