"""Config files: YAML, one recipe a file, which may extend another."""

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
"""Values of the variables that config files may name, where the environment does not set them."""
MOST_BYTES, MOST_VALUES, DEEPEST, LONGEST_CHAIN = 1_000_000, 100_000, 40, 20
"""Bounds of a config file, far beyond any real one: its size, its values once aliases stand for
what they name, how deep they are nested, and how many files extend each other.
"""


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a config file.

    `extends: other.yaml` (relative to the file) takes that file's settings first; `${NAME}` stands
    for an environment variable.

    Args:
        path: the file.
        overrides: settings to change, as `training.updates=100`.
    """
    found = changed(_read(path, ()), overrides)
    _check(found, str(path))
    expanded: dict[str, Any] = _expanded(found)
    return expanded


def changed(settings: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of settings with some of them changed, as `training.updates=100`."""
    found = copy.deepcopy(dict(settings))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"`--set` must read key=value, but is {text!r}.")
        keys = key.split(".")
        if len(keys) > DEEPEST:
            raise ConfigError(
                f"`--set` must name at most {DEEPEST} keys inside each other, but names "
                f"{len(keys)}."
            )
        made = _parse(value, f"--set {text}")
        _check(made, f"--set {text}")
        _set(found, keys, made)
    return found


def write(settings: dict[str, Any]) -> str:
    """The text of a config file."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if len(above) > LONGEST_CHAIN:
        raise ConfigError(
            f"{path}: at most {LONGEST_CHAIN} config files may extend each other, but there are "
            "more."
        )
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(
                f"{path} must be a config file of at most {MOST_BYTES:,} bytes, but is larger; is "
                "it another file?"
            )
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} must be a config file, but there is none.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} must be a config file, but is a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8, but {error}.") from None
    found = _parse(text, str(path))
    _check(found, str(path))
    if not isinstance(found, dict):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ConfigError(f"{path} must hold keys with values, but holds {what}.")
    parent = found.pop("extends", None)
    if parent is None:
        return found
    if not isinstance(parent, str):
        raise ConfigError(
            f"{path}: `extends` must be the name of a config file, but is {brief(parent)}."
        )
    place = path.parent / parent
    if place.resolve() in above:
        raise ConfigError(f"{path} extends itself by way of {parent}.")
    return merge(_read(place, (*above, path.resolve())), found)


def _parse(text: str, name: str) -> Any:
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _expanded_size(node, {}, frozenset()) > MOST_VALUES:
                raise ConfigError(
                    f"{name}: must hold at most {MOST_VALUES:,} values, but holds more once its "
                    "aliases (*name) stand for what they name; write out what is needed."
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
            f"{name}: must be nested at most {DEEPEST} deep, but is deeper."
        ) from None
    except (
        ValueError,
        OverflowError,
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # such as the 40th of a month
        raise ConfigError(
            f"{name}: holds a value that cannot be read: {first_line(error)}."
        ) from None


def _expanded_size(node: yaml.Node, known: dict[int, int], above: frozenset[int]) -> int:
    """How many values a node has, where each alias counts as what it names; each node is looked at
    once.
    """
    if id(node) in above:
        raise ConfigError(
            "An alias (*name) must not stand inside of what it names, but one does; write out what "
            "is needed."
        )
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        inside = above | {id(node)}
        children = (
            [part for pair in node.value for part in pair]
            if isinstance(node, yaml.MappingNode)
            else node.value
        )
        known[id(node)] = 1 + sum(_expanded_size(child, known, inside) for child in children)
    return known[id(node)]


def _check(value: Any, name: str, where: tuple[str, ...] = ()) -> None:
    """Refuse keys that are not text, text that cannot be written, and nesting beyond reason."""
    place = f"{name}: {'.'.join(where)}" if where else name
    if len(where) > DEEPEST:
        raise ConfigError(
            f"{name}: must be nested at most {DEEPEST} deep, but {'.'.join(where[:3])}… is deeper."
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{place}: keys must be text, but one is {brief(key)} ({type(key).__name__}); "
                    "put it in quotes."
                )
            _check(key, name, where)
            _check(inner, name, (*where, key))
    elif isinstance(value, list | tuple | set):
        for number, inner in enumerate(value):
            _check(inner, name, (*where, str(number)))
    elif isinstance(value, str) and _UNWRITABLE.search(value):
        raise ConfigError(
            f"{place}: must be text that can be written, but holds "
            f"{_UNWRITABLE.findall(value)[0]!r}; take it out."
        )
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise ConfigError(f"{place}: must be a number below 1e300, but is larger.")


_UNWRITABLE = re.compile(
    r"[\x00\ud800-\udfff]"
)  # such characters cannot be part of a path or of a UTF-8 file
_LARGEST = 10**300


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
        raise ConfigError(
            f"The environment variable {name} is named in the config, but is not set."
        )
    return found
