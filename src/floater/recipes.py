"""Config files: YAML, one recipe a file, which may extend another."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError

DEFAULTS = {"FLOATER_DATA": "../shared/data", "FLOATER_MODELS": "../shared/models"}
"""Values of the variables that config files may name, where the environment does not set them."""


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a config file.

    `extends: other.yaml` (relative to the file) takes that file's settings first; `${NAME}` stands for an environment variable.

    Args:
        path: the file.
        overrides: settings to change, as `training.updates=100`.
    """
    found = _read(path, ())
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"`--set` must read key=value, but is {text!r}.")
        _set(found, key.split("."), _parse(value, f"--set {text}"))
    expanded: dict[str, Any] = _expanded(found)
    return expanded


def write(settings: dict[str, Any]) -> str:
    """The text of a config file."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} must be a config file, but there is none.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} must be a config file, but is a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8, but {error}.") from None
    found = _parse(text, str(path))
    if not isinstance(found, dict):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ConfigError(f"{path} must hold keys with values, but holds {what}.")
    parent = found.pop("extends", None)
    if parent is None:
        return found
    place = path.parent / str(parent)
    if place.resolve() in above:
        raise ConfigError(f"{path} extends itself by way of {parent}.")
    return merge(_read(place, (*above, path.resolve())), found)


def _parse(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{name}{where}: not valid YAML: {getattr(error, 'problem', None) or error}.") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with other settings laid over them, part by part."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        # another kind of encoder, or another way to say where, brings settings of its own
        whole = both and (key in ("encoder", "sites") or "kind" in value)
        merged[key] = merge(old, value) if both and not whole else value  # type: ignore[arg-type]
    return merged


def _set(settings: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = settings.setdefault(key, {})
        if not isinstance(inner, dict):  # `sites: qkv` is short for `sites: {kind: qkv}`
            inner = settings[key] = {"kind": inner} if isinstance(inner, str) else {}
        settings = inner
    settings[keys[-1]] = value


def _expanded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", _variable, value)
    return value


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    found = os.environ.get(name) or DEFAULTS.get(name)
    if found is None:
        raise ConfigError(f"The environment variable {name} is named in the config, but is not set.")
    return found
