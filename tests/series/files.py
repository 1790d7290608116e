"""Small series files, and configs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_files(folder: Path, series: int = 40, *, shuffled: bool = True) -> dict[str, Any]:
    """Observations of two variables, of which one grows where the label is yes; the config."""
    random = np.random.default_rng(5)
    rows, labels = [], ["id,label,size,age,kind"]
    for number in range(series):
        positive = number % 2
        age = "" if number % 7 == 0 else str(20 + number)
        labels.append(
            f"p{number},{'yes' if positive else 'no'},{number / 4},{age},{'ab'[number % 2]}"
        )
        for time in np.sort(random.integers(0, 500, 6)):
            rows.append(f"p{number},{time},heart,{70 + positive * time / 10:.2f}")
            if random.random() < 0.5:
                rows.append(f"p{number},{time},breath,{random.normal(15, 2):.2f}")
    if shuffled:
        rows = [rows[i] for i in random.permutation(len(rows))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seen.csv").write_text("\n".join(["id,time,variable,value", *rows]) + "\n")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    return {
        "task": "series",
        "data": {
            "observations": str(folder / "seen.csv"),
            "labels": str(folder / "labels.csv"),
            "static": ["age"],
            "categories": ["kind"],
            "test_share": 0.25,
            "valid_share": 0.25,
        },
        "clock": {"unit": 60, "name": "minutes", "origin": 0.0},
        "model": {"preset": "tiny", "dropout": 0.0},
        "training": {"epochs": 2, "batch": 8, "threads": 1, "log_every": 1},
    }
