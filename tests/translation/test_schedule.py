"""How the learning rate of a translation run changes, and what that means for `--resume`."""

from __future__ import annotations

from pathlib import Path

import pytest

from floater.errors import RunError
from floater.runs.folder import RunFolder
from floater.tasks.translation.config import TranslationConfig

from .corpora import settings, train

WARMUP, UPDATES = 2, 6
EXPECTED = {
    "inverse_sqrt": [0.5, 1.0, (2 / 3) ** 0.5, (2 / 4) ** 0.5, (2 / 5) ** 0.5, (2 / 6) ** 0.5],
    "linear": [0.5, 1.0, 0.75, 0.5, 0.25, 0.0],
    "constant_with_warmup": [0.5, 1.0, 1.0, 1.0, 1.0, 1.0],
}
"""Learning rate as a share of its peak, after each update."""


def run(folder: Path, schedule: str, updates: int = UPDATES, *, resume: bool = False) -> RunFolder:
    training = {
        "schedule": schedule,
        "updates": updates,
        "warmup": WARMUP,
        "lr": 0.001,
        "log_every": 1,
        "save_every": UPDATES,
        "evaluate_every": UPDATES,
        "average": 1,
    }
    config = TranslationConfig(**settings(folder, training=training))
    return train(config, folder / "run", resume=resume)


@pytest.mark.parametrize("schedule", EXPECTED)
def test_the_rate_follows_the_schedule(schedule: str, tmp_path: Path) -> None:
    rows = run(tmp_path, schedule).metrics()
    # the Trainer logs the rate of the update that was made, so the list begins at 0
    rates = [row["learning_rate"] / 0.001 for row in rows if "learning_rate" in row]
    assert rates == pytest.approx([0.0, *EXPECTED[schedule]][:UPDATES], abs=1e-9)


def test_a_run_that_ended_at_rate_zero_cannot_be_extended(tmp_path: Path) -> None:
    run(tmp_path, "linear")
    with pytest.raises(RunError, match=r"was started with training\.updates = 6, but the"):
        run(tmp_path, "linear", 8, resume=True)
    (tmp_path / "more").mkdir()
    run(tmp_path / "more", "inverse_sqrt")
    assert run(tmp_path / "more", "inverse_sqrt", 8, resume=True).facts()["updates"] == 8
