"""Cases that train with odd settings, or with a config file that is not valid YAML."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from .cases import ODD, Case, Verdict
from .processes import command, run
from .world import World, settings

_GARBLED = (
    "a: &a [1]\nb: [*a, *a]\n",
    "? [1, 2]\n: x\n",
    "1: 2\n",
    "2026-11-16: 1\n",
    "- a\n",
    "null: 1\n",
    "a: !!python/object:os.system x\n",
    "".join(f"k{i}: &k{i} [{f'*k{i - 1},' * 9 if i else 1}]\n" for i in range(12)),
)


def odd_configs(world: World, draw: random.Random) -> Iterator[Case]:
    """Change a setting to an odd value, or garble the text of a config, then train."""
    while True:
        config = settings(2)
        keys, value = draw.choice(list(_paths(config))), draw.choice(ODD)
        way = draw.random()
        if way < 0.15:
            text = draw.choice(_GARBLED) + (yaml.safe_dump(config) if draw.random() < 0.5 else "")
            name = f"garbled {text[:30]!r}"
        elif way < 0.3:
            lines = yaml.safe_dump(config).splitlines()
            number = draw.randrange(len(lines))
            lines[number] = lines[number].replace(
                draw.choice(" :abcde1"), draw.choice(["", "\t", "[", "'", "&x ", "%"]), 1
            )
            text, name = "\n".join(lines), f"line {number} reads {lines[number]!r}"
        else:
            section = config
            for key in keys[:-1]:
                section = section[key]
            section[keys[-1]] = value
            text, name = (
                yaml.dump(config, allow_unicode=True),
                f"{'.'.join(keys)} = {value!r}"[:100],
            )
        yield Case(f"config: {name}", partial(_train, text))


def _paths(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each setting and each section."""
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


def _train(text: str, place: Path) -> Verdict:
    (place / "config.yaml").write_text(text, encoding="utf-8")
    finished = run(command("train", place / "config.yaml", "--out", place / "out"))
    if finished.outcome() == "right":
        weights = load_file(place / "out" / "model" / "model.safetensors")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            return "wrong", "weights that are not finite"
    return finished.outcome(), finished.err
