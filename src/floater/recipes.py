"""Config files: YAML files, which may extend each other."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError, brief, first_line

DEFAULTS = {"FLOATER_DATA": "../shared/data", "FLOATER_MODELS": "../shared/models"}
"""Defaults of the environment variables that config files may use."""
MAX_BYTES, MAX_VALUES, MAX_DEPTH, MAX_CHAIN = 1_000_000, 100_000, 40, 20
"""Limits of a config file, far beyond any real one: its size, its number of values with aliases
expanded, the depth of nesting, and the number of files that extend each other.
"""
_MAX_INTEGER = 10**300
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that neither a path nor a UTF-8 file can contain."""


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the settings of a config file.

    `extends: other.yaml` (relative to the file) starts from the settings of another file, and
    `${NAME}` stands for an environment variable.

    Args:
        path: the file.
        overrides: settings to change, such as `training.updates=100`.
    """
    settings = with_overrides(_read(path, ()), overrides)
    _check(settings, str(path))
    expanded: dict[str, Any] = _expand_variables(settings)
    return expanded


def with_overrides(settings: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of settings with overrides such as `training.updates=100`, in which `${NAME}` stands
    for an environment variable, as in a config file.
    """
    result = copy.deepcopy(dict(settings))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"`--set` must have the form key=value, but is {text!r}.")
        keys = key.split(".")
        if len(keys) > MAX_DEPTH:
            raise ConfigError(
                f"`--set` must name at most {MAX_DEPTH} keys inside each other, but names "
                f"{len(keys)}."
            )
        parsed = _parse(value, f"--set {text}")
        _check(parsed, f"--set {text}")
        _set(result, keys, _expand_variables(parsed))
    return result


def to_yaml(settings: dict[str, Any]) -> str:
    """The text of a config file."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _read(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    if len(children) > MAX_CHAIN:
        raise ConfigError(
            f"{path}: at most {MAX_CHAIN} config files may extend each other, but there are more."
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"{path} must be a config file of at most {MAX_BYTES:,} bytes, but is larger; "
                "check the path."
            )
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} must be a config file, but there is none.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} must be a config file, but is a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8, but {error}.") from None
    settings = _parse(text, str(path))
    _check(settings, str(path))
    if not isinstance(settings, dict):
        content = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise ConfigError(f"{path} must hold keys with values, but holds {content}.")
    parent = settings.pop("extends", None)
    if parent is None:
        return settings
    if not isinstance(parent, str):
        raise ConfigError(
            f"{path}: `extends` must be the name of a config file, but is {brief(parent)}."
        )
    parent_path = path.parent / parent
    if parent_path.resolve() in children:
        raise ConfigError(f"{path} extends itself by way of {parent}.")
    return merge(_read(parent_path, (*children, path.resolve())), settings)


def _parse(text: str, name: str) -> Any:
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _expanded_size(node, {}, frozenset()) > MAX_VALUES:
                raise ConfigError(
                    f"{name}: must hold at most {MAX_VALUES:,} values, but holds more with its "
                    "aliases (*name) expanded; write out what is needed."
                )
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except ConfigError as error:
        raise ConfigError(
            str(error) if str(error).startswith(name) else f"{name}: {error}"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(
            f"{name}{where}: not valid YAML: "
            f"{getattr(error, 'problem', None) or first_line(error)}."
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{name}: must be nested at most {MAX_DEPTH} deep, but is deeper."
        ) from None
    # such as a date with the 40th of a month
    except (ValueError, OverflowError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{name}: holds a value that cannot be read: {first_line(error)}."
        ) from None


def _expanded_size(node: yaml.Node, sizes: dict[int, int], parents: frozenset[int]) -> int:
    """The number of values of a node with aliases expanded; each node is counted once."""
    if id(node) in parents:
        raise ConfigError(
            "An alias (*name) must not contain itself, but one does; write out what is needed."
        )
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        mapping = isinstance(node, yaml.MappingNode)
        children = [child for pair in node.value for child in pair] if mapping else node.value
        path = parents | {id(node)}
        sizes[id(node)] = 1 + sum(_expanded_size(child, sizes, path) for child in children)
    return sizes[id(node)]


def _check(value: Any, name: str, where: tuple[str, ...] = ()) -> None:
    """Raise an error for keys that are not text, unwritable text, and too deep nesting."""
    location = f"{name}: {'.'.join(where)}" if where else name
    if len(where) > MAX_DEPTH:
        raise ConfigError(
            f"{name}: must be nested at most {MAX_DEPTH} deep, but {'.'.join(where[:3])}… is "
            "deeper."
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{location}: keys must be text, but one is {brief(key)} "
                    f"({type(key).__name__}); put it in quotes."
                )
            _check(key, name, where)
            _check(inner, name, (*where, key))
    elif isinstance(value, list | tuple | set):
        for number, inner in enumerate(value):
            _check(inner, name, (*where, str(number)))
    elif isinstance(value, str) and _UNWRITABLE.search(value):
        raise ConfigError(
            f"{location}: must be text that can be written, but holds "
            f"{_UNWRITABLE.findall(value)[0]!r}; remove it."
        )
    elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise ConfigError(f"{location}: must be a number below 1e300, but is larger.")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings key by key; `above` wins."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        # another kind of encoder or sites has other settings, so it replaces the old one
        replace = both and (key in ("encoder", "sites") or "kind" in value)
        merged[key] = merge(old, value) if both and not replace else value  # type: ignore[arg-type]
    return merged


def _set(settings: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = settings.setdefault(key, {})
        if not isinstance(inner, dict):  # `sites: qkv` is short for `sites: {kind: qkv}`
            inner = settings[key] = {"kind": inner} if isinstance(inner, str) else {}
        settings = inner
    settings[keys[-1]] = value


def _expand_variables(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _expand_variables(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand_variables(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", _variable, value)
    return value


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    value = os.environ.get(name) or DEFAULTS.get(name)
    if value is None:
        raise ConfigError(f"The config uses the environment variable {name}, but it is not set.")
    return value
