from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from floater.errors import RunError
from floater.experiments.arms import Arm, embedded
from floater.experiments.machine import run_all
from floater.training.records import RunFolder

QUIET = Console(quiet=True)


def settings(*keys: str, **training: Any) -> dict[str, dict[str, Any]]:
    few = {"embedded": {"train": {"pairs": 150}, "valid": {"pairs": 4}, "test": {"pairs": 6, "longest": 6}}}
    changes = {
        "data": few,
        "vocabulary": {"size": 320},
        "model": {"dim": 16, "feed_forward": 16},
        "training": {"updates": 4, "batch_tokens": 512, "save_every": 2, "log_every": 1, **training},
    }
    return {key: embedded(key, **changes) for key in keys}


def test_runs_are_made_once_and_warm_starts_after_their_base(tmp_path: Path) -> None:
    arms = [Arm("flow-qkv", "warm", after="sinusoidal"), Arm("sinusoidal", "base")]
    made = settings("sinusoidal", "flow-qkv")
    runs = run_all(arms, made, [0, 1], tmp_path, workers=1, console=QUIET)
    assert [run.path.name for run in runs["flow-qkv"]] == ["flow-qkv-seed0", "flow-qkv-seed1"]
    assert all(set(run.scores()["test"]["bins"]) == {"0-48", "48-96", "96-144", "144+"} for found in runs.values() for run in found)
    when = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/scores.json")}
    assert len(when) == 4
    run_all(arms, made, [0, 1], tmp_path, workers=1, console=QUIET)
    assert when == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/scores.json")}


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    arms = [Arm("sinusoidal", "base")]
    run_all(arms, settings("sinusoidal"), [0], tmp_path, workers=1, console=QUIET)
    with pytest.raises(RunError, match=r"started with training.lr = 0.005, but the config now says 0.1"):
        run_all(arms, settings("sinusoidal", lr=0.1), [0], tmp_path, workers=1, console=QUIET)


CODE = """
import sys
from pathlib import Path
from rich.console import Console
from tests.experiments.test_machine import settings
from floater.experiments.arms import Arm
from floater.experiments.machine import run_all
if __name__ == "__main__":
    made = settings("sinusoidal", updates=60, save_every=2)
    run_all([Arm("sinusoidal", "base")], made, [0], Path(sys.argv[1]), workers=int(sys.argv[2]), console=Console(), apart=True)
"""


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker_behind_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path), "1"]
    killed = subprocess.Popen(command, env=environment, start_new_session=True)
    folder = RunFolder(tmp_path / "sinusoidal-seed0")
    while not list(folder.checkpoints.glob("checkpoint-*")):
        assert killed.poll() is None
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    time.sleep(1)
    before = list(folder.metrics())
    time.sleep(1)
    assert list(folder.metrics()) == before, "the worker must end with its parent"
    assert len(before) < 60
    subprocess.run(command, env=environment, check=True)
    assert folder.facts()["updates"] == 60
    assert len(folder.facts()["commands"]) == 2
    assert {row["step"] for row in folder.metrics() if "loss" in row} == set(range(1, 61))
