"""A language pair small enough to learn in seconds: numbers in digits → their digits in words,
reversed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from floater.runs.folder import RunFolder
from floater.tasks.translation.config import TranslationConfig
from floater.tasks.translation.task import TranslationTask
from floater.training.run import run

WORDS = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")


def pairs(count: int, seed: int, longest: int = 8) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    rows = [[draw.randrange(10) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return [" ".join(map(str, row)) for row in rows], [
        " ".join(WORDS[digit] for digit in reversed(row)) for row in rows
    ]


def write_pairs(folder: Path, name: str, count: int, seed: int) -> dict[str, str]:
    found = {}
    for side, lines in zip(("source", "target"), pairs(count, seed), strict=True):
        path = folder / f"{name}.{side}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        found[side] = str(path)
    return found


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """A config whose data lies in a folder; made there if it is not yet."""
    made = {
        name: write_pairs(folder, name, count, seed)
        for name, count, seed in (("train", 120, 1), ("valid", 12, 2), ("test", 12, 3))
    }
    found: dict[str, Any] = {
        "task": "translation",
        "data": {"source": "digits", "target": "de", **made},
        "vocabulary": {"size": 300},
        "model": {
            "preset": "tiny",
            "layers": 1,
            "dim": 16,
            "feed_forward": 32,
            "heads": 2,
            "dropout": 0.1,
        },
        "training": {
            "updates": 6,
            "batch_tokens": 256,
            "lr": 0.003,
            "warmup": 4,
            "evaluate_every": 100,
            "save_every": 2,
            "keep": 2,
            "average": 2,
            "log_every": 1,
            "tensorboard": False,
        },
        "decoding": {"beam": 2, "max_ratio": 3.0},
    }
    for key, value in changes.items():
        found[key] = (
            {**found[key], **value}
            if isinstance(found.get(key), dict) and isinstance(value, dict)
            else value
        )
    return found


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings(folder, **changes)), encoding="utf-8")
    return path


def train(config: TranslationConfig, path: Path, *, resume: bool = False) -> RunFolder:
    """Train a translation run."""
    return run(TranslationTask(config), path, resume=resume)
