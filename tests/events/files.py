"""Small files of event sequences, and configs that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TYPES = ("ride", "stop", "7")


def sequences(count: int = 40) -> list[dict[str, Any]]:
    """Sequences of 4 to 9 events within 12 minutes; one pair of events has the same time."""
    random = np.random.default_rng(3)
    found = []
    for number in range(count):
        length = 4 + number % 6
        later = np.cumsum(random.exponential(2, length))
        later = 12 * (later - later[0]) / (later[-1] - later[0])
        times = 100 * number + np.round(later, 4)
        if number == 0:
            times[2] = times[1]
        types = [TYPES[kind] for kind in random.integers(0, 3, length)]
        found.append({"id": f"q{number}", "times": times.tolist(), "types": types})
    return found


def write_files(folder: Path, count: int = 40, factor: float = 1.0) -> dict[str, Any]:
    """The same sequences as JSON lines and as CSV, their times multiplied; a config."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sequences(count)
    for entry in found:
        entry["times"] = [factor * time for time in entry["times"]]
    lines = [json.dumps(entry) for entry in found]
    (folder / "seen.jsonl").write_text("\n".join(lines) + "\n")
    rows = ["who,when,what"]
    for entry in found:
        pairs = zip(entry["times"], entry["types"], strict=True)
        rows += [f"{entry['id']},{time!r},{kind}" for time, kind in pairs]
    (folder / "seen.csv").write_text("\n".join(rows) + "\n")
    return {
        "task": "events",
        "data": {
            "sequences": str(folder / "seen.jsonl"),
            "columns": {"id": "who", "time": "when", "type": "what"},
            "test_share": 0.25,
            "valid_share": 0.25,
        },
        "clock": {"unit": 2 * factor, "name": "minutes", "scale": 0.1},
        "model": {"preset": "tiny", "dropout": 0.0},
        "head": {"components": 4},
        "training": {"epochs": 2, "batch": 8, "threads": 1, "log_every": 1},
    }
