"""Cases in which two commands use one folder, or a signal stops a command."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import yaml

from .cases import Case, Verdict
from .processes import Finished, Work, command, run, start, wait
from .world import World

_KINDS = ["train", "evaluate", "train and evaluate", "average"]
_NAMES = ("one", "two")
_OTHER_SEED = 7
_STOP_WITHIN = 3.0


def two_at_once(world: World, draw: random.Random) -> Iterator[Case]:
    """Use one folder with two commands at the same time."""
    while True:
        kind, delay = draw.choice(_KINDS), draw.uniform(0, 1.5)
        name = f"two at once: {kind}, {delay:.2f} s apart"
        yield Case(name, partial(_run_two, world, kind, delay))


def _run_two(world: World, kind: str, delay: float, place: Path) -> Verdict:
    folder, works = _two_commands(world, kind, place)
    children = []
    for number, work in enumerate(works):
        children.append(start(work))
        time.sleep(delay if number == 0 else 0)
    ends = [wait(child) for child in children]
    bad = [end for end in ends if end.outcome() not in ("right", "refused")]
    if bad:
        return bad[0].outcome(), bad[0].err
    if kind == "evaluate":
        return _both_scores(folder, ends)
    if kind == "train":
        return _one_trained(folder, ends)
    succeeded = [end.code == 0 for end in ends]
    if kind == "average" and not any(succeeded):
        return "wrong", ends[0].err
    return ("right" if all(succeeded) else "refused"), ""


def _two_commands(world: World, kind: str, place: Path) -> tuple[Path, list[Work]]:
    """Return the folder that both commands use, and the commands."""
    if kind == "train":
        folder = place / "out"
        other = world.train(folder, "--set", f"seed={_OTHER_SEED}")
        return folder, [world.train(folder), other]
    if kind == "train and evaluate":
        folder = world.copy("half", place)
        return folder, [world.train(folder), command("evaluate", folder)]
    folder = world.copy("run", place)
    if kind == "average":
        return folder, [command("average", folder, "--last", 2)] * 2
    return folder, [command("evaluate", folder, "--name", name) for name in _NAMES]


def _both_scores(folder: Path, ends: Sequence[Finished]) -> Verdict:
    """Check that every evaluation that succeeded recorded its scores."""
    scores = json.loads((folder / "scores.json").read_text())["sets"]
    missing = [
        name for name, end in zip(_NAMES, ends, strict=True) if end.code == 0 and name not in scores
    ]
    return ("lost", f"scores of {missing}") if missing else ("right", "")


def _one_trained(folder: Path, ends: Sequence[Finished]) -> Verdict:
    """Check that one command trained, the other reported why not, and the config is the first's."""
    succeeded = [end.code == 0 for end in ends]
    locked = "in use by process" in "".join(end.err for end in ends)
    taken = any(end.refused() and "holds a run already" in end.err for end in ends)
    if sum(succeeded) != 1 or not (locked or taken):
        return "wrong", "\n".join(end.err for end in ends)
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    if (seed == _OTHER_SEED) == succeeded[1]:
        return "right", ""
    return "wrong", f"the config has seed {seed}"


def stops(world: World, draw: random.Random) -> Iterator[Case]:
    """Send Ctrl-C or SIGTERM at any moment; the run must end in time and resume to the same
    bits.
    """
    while True:
        how, delay = draw.choice([signal.SIGINT, signal.SIGTERM]), draw.uniform(0.0, 3.0)
        yield Case(f"{how.name} after {delay:.2f} s", partial(_stop, world, how, delay))


def _stop(world: World, how: signal.Signals, delay: float, place: Path) -> Verdict:
    out = place / "out"
    child = start(world.train(out))
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, how)
    sent = time.monotonic()
    finished = wait(child)
    took = time.monotonic() - sent
    if finished.code is None or took > _STOP_WITHIN:
        return "hang", f"{took:.1f} s\n{finished.err}"
    if "Traceback" in finished.err:
        return "traceback", finished.err
    again = run(world.train(out))
    if again.code != 0:
        return "lost", again.err
    return ("right", "") if world.same_model(out) else ("wrong", "other weights")
