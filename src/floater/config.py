"""Typed settings: checked when created; an unknown key raises an error with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from .errors import ConfigError, brief

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
"""A positive integer of a reasonable size."""


class Config(BaseModel):
    """Base class of all settings: frozen, with errors of one line (:class:`ConfigError`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, *unnamed: Any, **settings: Any) -> None:
        if unnamed:
            raise ConfigError(_explain_unnamed(type(self), unnamed, settings))
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(explain(type(self), error)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `stretch=True` or `lr: yes`, which would count as 1."""
        assert info.field_name is not None
        types = _types_in(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and {int, float} & types and not {bool, Any} & types:
            raise PydanticCustomError("number", "must be a number")
        return value

    def __setattr__(self, key: str, value: Any) -> NoReturn:
        name = type(self).__name__
        raise ConfigError(
            f"{name} must not be changed after it was created, but `{key}` was set; create a new "
            f"{name}({key}={value!r})."
        )


def _types_in(annotation: Any) -> set[Any]:
    """All types that occur in an annotation."""
    arguments = get_args(annotation)
    if not arguments:
        return {annotation}
    return set().union(*(_types_in(argument) for argument in arguments))


def saved_encoder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoder's settings as a folder recorded them, with all defaults written out.

    Flows that were saved before `pace` existed had the free one, and safe ones before `reach`
    existed had 64.
    """
    if settings.get("kind") != "flow":
        return dict(settings)
    return {"pace": "free", "reach": 64.0, **settings}


def _explain_unnamed(
    config: type[BaseModel], unnamed: tuple[Any, ...], settings: dict[str, Any]
) -> str:
    """One line for settings without names, with the call that was probably meant."""
    if isinstance(unnamed[0], dict):
        meant = settings | unnamed[0]
    else:
        keys = (key for key in config.model_fields if key not in settings)
        meant = settings | dict(zip(keys, unnamed, strict=False))
    call = ", ".join(f"{key}={value!r}" for key, value in meant.items())
    return (
        f"{config.__name__} takes its settings by name, but was given {unnamed[0]!r} without a "
        f"name; write {config.__name__}({call})."
    )


def explain(config: type[BaseModel], error: ValidationError) -> str:
    """One line for the first of pydantic's errors."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"])) or config.__name__
    keys = list(config.model_fields)
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return f"{key}: {inner}{more}" if first["loc"] else f"{inner}{more}"
    if first["type"] == "value_error" and inner is not None:
        return f"{key}: {inner}.{more}" if first["loc"] else f"{inner}.{more}"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(keys)}."
        return f"{config.__name__} has no key `{key}`; {hint}{more}"
    if first["type"] == "missing":
        return f"{config.__name__} needs a value for `{key}`, but none was given.{more}"
    reason = first["msg"][0].lower() + first["msg"][1:]
    reason = reason.replace("a valid tuple", "a list")
    return f"`{key}` of {config.__name__}: {reason}, but is {brief(first['input'])}.{more}"
