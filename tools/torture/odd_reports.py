"""Cases that change values in the records of a run, and then write a report."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from .cases import ODD, Case, Verdict
from .processes import command, run
from .world import World

_FILES = ("run.json", "scores.json", "metrics.jsonl", "config.yaml", "results.json")
_SCRIPT = "<script>alert(1)</script>"
_ODD = (*ODD, _SCRIPT, "\ud800", 10**400, {"score": "x"}, {"score": float("nan")})


def odd_reports(world: World, draw: random.Random) -> Iterator[Case]:
    """Change values in a record of a run to odd ones, then write a page."""
    while True:
        name, seed = draw.choice(_FILES), draw.randrange(10**6)
        attempt = partial(_report, world, draw, name, seed)
        yield Case(f"report with odd {name} (seed {seed})", attempt)


def _report(world: World, draw: random.Random, name: str, seed: int, place: Path) -> Verdict:
    folder, inner = world.copy(draw.choice(["run", "rte"]), place), random.Random(seed)
    if name == "results.json":
        (folder / "config.yaml").unlink()
    record = _read(folder / name)
    for row in record if isinstance(record, list) else [record]:  # as if the user made the change
        row.pop("facts_sha256", None)
        row.pop("crc32", None)
    for _ in range(inner.randrange(1, 4)):
        _mutate(record, inner)
    _write(folder / name, record)
    page = place / "page.html"
    finished = run(command("report", place, "--out", page))
    if finished.outcome() == "right" and b"<script>alert" in page.read_bytes():
        return "wrong", "a script from the data is in the page"
    return finished.outcome(), finished.err


def _read(path: Path) -> Any:
    if path.name == "results.json":
        table = {"title": "t", "columns": ["a"], "rows": [[1]]}
        return {"item": "s2l", "scale": "smoke", "title": "x", "tables": [table]}
    if path.name == "config.yaml":
        return yaml.safe_load(path.read_text())
    if path.name == "metrics.jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())


def _write(path: Path, record: Any) -> None:
    if path.name == "metrics.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in record))
    else:
        path.write_text(yaml.dump(record) if path.name == "config.yaml" else json.dumps(record))


def _mutate(record: Any, draw: random.Random) -> None:
    """Replace a value somewhere in nested dicts and lists."""
    while True:
        keys = list(record) if isinstance(record, dict) else list(range(len(record)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(record[key], (dict, list)) and record[key] and draw.random() < 0.7:
            record = record[key]
            continue
        record[key] = copy.deepcopy(draw.choice(_ODD))  # a later call may change it
        return
