"""Cases that break a file of a run or of a saved model, and then use it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .cases import SAVED_ANYWAY, Case, Verdict
from .disk import DAMAGES, damage, lost, snapshot
from .processes import Work, command, run
from .world import SHORT, World

_COMMANDS = {
    "run": ["translate", "evaluate", "average", "plot", "report"],
    "half": ["train"],
    "rte": ["evaluate", "report", "plot", "train"],
}
"""Commands to try on each run of the world."""


def damaged_runs(world: World, draw: random.Random) -> Iterator[Case]:
    """Break a file of a finished, a stopped or an understanding run, then give a command."""
    while True:
        source = draw.choice(["run", "run", "half", "rte"])
        files = [
            path.relative_to(world.root / source)
            for path in sorted((world.root / source).rglob("*"))
            if path.is_file()
        ]
        file, how, seed = draw.choice(files), draw.choice(DAMAGES), draw.randrange(10**6)
        action = draw.choice(_COMMANDS[source])
        attempt = partial(_use_damaged_run, world, source, file, how, action, seed)
        yield Case(f"{source}: {file} {how} (seed {seed}), {action}", attempt)


def _use_damaged_run(
    world: World, source: str, file: Path, how: str, action: str, seed: int, place: Path
) -> Verdict:
    folder = world.copy(source, place)
    damage(folder / file, how, random.Random(seed))
    before = snapshot(folder)
    finished = run(_work(world, action, source, folder, place))
    after = snapshot(folder)
    outcome = finished.outcome()
    if outcome == "right":
        if action == "translate" and finished.out != world.references["translate"]:
            return "wrong", finished.out
        if action == "train" and source == "half" and not world.same_model(folder):
            return "wrong", "other weights"
    if outcome == "refused" and (changed := lost(before, after, SAVED_ANYWAY)):
        return "lost", f"{changed}\n{finished.err}"
    return outcome, finished.err


def _work(world: World, action: str, source: str, folder: Path, place: Path) -> Work:
    if action == "translate":
        return world.translate(folder)
    if action == "train":
        if source == "half":
            return world.train(folder)
        config = world.root / "world" / "rte.yaml"
        return command("train", config, "--out", folder, "--resume", *SHORT)
    options: dict[str, tuple[object, ...]] = {
        "average": ("--last", 2, "--out", place / "averaged"),
        "plot": ("--out", place / "plot.png"),
        "report": ("--out", place / "report.html"),
    }
    return command(action, folder, *options.get(action, ()))


def damaged_models(world: World, draw: random.Random) -> Iterator[Case]:
    """Break a file of a saved model, then load the model."""
    while True:
        files = [
            path.name
            for path in sorted((world.root / "model").iterdir())
            if path.name != "README.md"
        ]
        file, how, seed = draw.choice(files), draw.choice(DAMAGES), draw.randrange(10**6)
        hashed = draw.random() < 0.7
        name = f"model{'' if hashed else ' without hashes'}: {file} {how} (seed {seed})"
        yield Case(name, partial(_load_damaged_model, world, file, how, seed, hashed))


def _load_damaged_model(
    world: World, file: str, how: str, seed: int, hashed: bool, place: Path
) -> Verdict:
    folder = world.copy("model", place)
    damage(folder / file, how, random.Random(seed))
    if not hashed and (folder / "hashes.json").is_file():
        (folder / "hashes.json").unlink()
    before = snapshot(folder)
    finished = run(world.outputs(folder))
    if finished.outcome() == "right" and finished.out != world.references["model"]:
        # without hashes, nothing shows that the settings are not the saved ones
        undetectable = not hashed and file == "config.json"
        return ("right" if undetectable else "wrong"), finished.out
    return ("lost" if lost(before, snapshot(folder)) else finished.outcome()), finished.err
