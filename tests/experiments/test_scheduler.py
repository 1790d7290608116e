from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from floater.errors import DataError, RunError
from floater.experiments.parallel import run_in_parallel
from floater.experiments.scheduler import Job, run_all
from floater.experiments.variants import Variant, embedded
from floater.runs.folder import RunFolder

QUIET = Console(quiet=True)


def settings(*keys: str, **training: Any) -> dict[str, dict[str, Any]]:
    few = {
        "embedded": {
            "train": {"pairs": 150},
            "valid": {"pairs": 4},
            "test": {"pairs": 6, "longest": 6},
        },
        "max_source_tokens": None,
    }
    changes = {
        "data": few,
        "vocabulary": {"size": 320},
        "model": {"dim": 16, "feed_forward": 16},
        "training": {
            "updates": 4,
            "batch_tokens": 512,
            "save_every": 2,
            "log_every": 1,
            **training,
        },
    }
    return {key: embedded(key, **changes) for key in keys}


@pytest.mark.slow
def test_runs_are_made_once_and_warm_starts_after_their_base(tmp_path: Path) -> None:
    variants = [Variant("flow-qkv", "warm", after="sinusoidal"), Variant("sinusoidal", "base")]
    made = settings("sinusoidal", "flow-qkv")
    runs = run_all(variants, made, [0, 1], tmp_path, workers=1, console=QUIET)
    assert [run.path.name for run in runs["flow-qkv"]] == ["flow-qkv-seed0", "flow-qkv-seed1"]
    assert all(
        set(run.scores().sets["test"].bins) == {"0-32", "32-64", "64+"}
        for found in runs.values()
        for run in found
    )
    when = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/scores.json")}
    assert len(when) == 4
    run_all(variants, made, [0, 1], tmp_path, workers=1, console=QUIET)
    assert when == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/scores.json")}


@pytest.mark.slow
def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    variants = [Variant("sinusoidal", "base")]
    run_all(variants, settings("sinusoidal"), [0], tmp_path, workers=1, console=QUIET)
    with pytest.raises(
        RunError, match=r"started with training.lr = 0.005, but the config now says 0.1"
    ):
        run_all(variants, settings("sinusoidal", lr=0.1), [0], tmp_path, workers=1, console=QUIET)


CODE = """
import sys
from pathlib import Path
from rich.console import Console
from tests.experiments.test_scheduler import settings
from floater.experiments.variants import Variant
from floater.experiments.scheduler import run_all
if __name__ == "__main__":
    made = settings("sinusoidal", updates=60, save_every=2)
    variants, out, workers = [Variant("sinusoidal", "base")], Path(sys.argv[1]), int(sys.argv[2])
    run_all(variants, made, [0], out, workers=workers, console=Console(), apart=True)
"""


@pytest.mark.torture
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


@dataclass(frozen=True)
class Waits:
    """Work that does nothing for a while, fails, or dies."""

    label: str
    seconds: float = 0.0
    error: Exception | None = None
    killed: bool = False
    odd: bool = False
    total: int = 1

    def step(self) -> tuple[int, str]:
        return 0, ""

    def perform(self, console: Console | None = None) -> None:
        if self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        if self.odd:
            raise Unportable(1, 2)
        if self.error is not None:
            raise self.error


class Unportable(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "kind", "message"),
    [
        (
            Waits("wrong", error=DataError("x.txt must be a text file, but there is none.")),
            DataError,
            "x.txt must be a text file",
        ),
        (Waits("odd", odd=True), RuntimeError, "1 and 2"),
        (Waits("long", error=DataError("x" * 10**6)), DataError, "xxx"),
        (
            Waits("dies", killed=True),
            RunError,
            "The process of dies was killed by signal 9, perhaps for lack of memory",
        ),
    ],
)
def test_a_job_that_fails_ends_the_others_at_once(
    fails: Waits, kind: type[Exception], message: str
) -> None:
    begun = time.perf_counter()
    with pytest.raises(kind, match=message):
        run_in_parallel([Waits("[/red] slow", 900), fails, Waits("never begins", 900)], 2, QUIET)
    assert time.perf_counter() - begun < 600, "nobody may wait for what still runs"
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_jobs_take_turns() -> None:
    run_in_parallel(
        [Waits(str(number)) for number in range(3)], 2, Console(quiet=True, force_terminal=True)
    )
    assert not multiprocessing.active_children()


def test_what_is_missing_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = settings("sinusoidal", "learned")
    (tmp_path / "there.txt").write_text("a\n", encoding="utf-8")
    there = {"source": tmp_path / "there.txt", "target": tmp_path / "there.txt"}
    files = {
        "source": "en",
        "target": "de",
        "train": there,
        "valid": there,
        "test": {**there, "target": tmp_path / "gone.txt"},
    }
    made["learned"]["data"] = files
    monkeypatch.setattr(Job, "perform", lambda *_: pytest.fail("nothing may start"))
    variants = [Variant("sinusoidal", "one"), Variant("learned", "two")]
    with pytest.raises(DataError, match=r"gone\.txt must be a text file, but there is none"):
        run_all(variants, made, [0], tmp_path / "out", workers=1, console=QUIET)
    made["learned"]["data"] = {**files, "test": there}
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1000))
    with pytest.raises(RunError, match=r"needs about .*, but its disk has 1 kB left; make room"):
        run_all(variants, made, [0], tmp_path / "out", workers=1, console=QUIET)
    assert not (tmp_path / "out").exists()
