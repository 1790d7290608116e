"""A run folder: its files, and how each is written and read."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..config import saved_encoder
from ..errors import RunError, brief
from ..files import reading, write_text, writing
from ..recipes import read, to_yaml
from .checked_json import read_checked, write_checked
from .locks import score_lock
from .scores import SCORES, PairedScore, Scores, SetScores
from .version import VERSION, check_version

CONFIG, RUN, METRICS = "config.yaml", "run.json", "metrics.jsonl"
OLD_SCORES = "scores.old.json"
"""Scores of a model that has been replaced."""
_PACKAGES = (
    "floater-transformers",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "datasets",
    "sacrebleu",
    "numpy",
)


class RunFolder:
    """Paths and files of a run.

    Attributes:
        path: the folder.
        checkpoints: folder of the Trainer's checkpoints.
        model: folder of the finished model.
        vocabulary: folder of the vocabulary, for tasks that learn one.
        predictions: folder of the predictions on test sets.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.vocabulary = path / "vocabulary"
        self.predictions = path / "predictions"

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was started earlier."""
        folder = cls(path)
        if not folder.started():
            raise RunError(f"{path} must be the folder of a run (with {CONFIG}), but is not.")
        return folder

    def started(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / CONFIG).is_file()

    def check_unused(self) -> None:
        """Refuse a folder that has lost its config: its content must not be overwritten."""
        for path in (self.path / RUN, self.model, *self.checkpoints.glob("checkpoint-*")):
            if path.exists():
                raise RunError(
                    f"{self.path} holds {path.name} but no {CONFIG}, without which the run cannot "
                    f"be continued; restore {CONFIG}, or choose another --out."
                )

    def settings(self) -> dict[str, Any]:
        """The settings in `config.yaml`."""
        settings = read(self.path / CONFIG)
        positions = settings.get("positions")
        encoder = positions.get("encoder") if isinstance(positions, dict) else None
        if isinstance(positions, dict) and isinstance(encoder, dict):
            settings["positions"] = {**positions, "encoder": saved_encoder(encoder)}
        return settings

    # Facts ----------------------------------------------------------------------------------------

    def begin(self, settings: dict[str, Any], facts: dict[str, Any]) -> None:
        """Write the config with all defaults, the command, the versions and further facts."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / CONFIG, to_yaml(settings))
        command = shlex.join(["floater", *sys.argv[1:]])
        self.note(
            commands=[*self.facts().get("commands", []), command],
            versions={
                "python": platform.python_version(),
                **{name: _version(name) for name in _PACKAGES},
            },
            machine={
                "system": platform.system(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
            **facts,
        )

    def note(self, **facts: Any) -> None:
        """Add facts to `run.json`."""
        write_checked(self.path / RUN, {"version": VERSION, **self.facts(), **facts})

    def facts(self) -> dict[str, Any]:
        """The content of `run.json`."""
        path = self.path / RUN
        if not path.exists() and (
            self.model.is_dir() or any(self.checkpoints.glob("checkpoint-*"))
        ):
            raise RunError(
                f"{self.path} must hold {RUN}, which records the training data and whether the run "
                "is finished, but does not; restore it, or train into another --out."
            )
        facts = read_checked(path)
        check_version(path, facts.pop("version", 1))
        data = facts.get("data")
        splits = data if isinstance(data, dict) else {}
        checked = {**facts, **{f"data.{name}": value for name, value in splits.items()}}
        for name, value in checked.items():
            expected = dict if name.startswith("data.") else _FACT_TYPES.get(name, object)
            if not isinstance(value, expected) or (
                expected is not object and isinstance(value, bool)
            ):
                raise RunError(
                    f"{path} must not hold {brief(value)} as `{name}`, but does; it is damaged: "
                    "restore a copy."
                )
        return facts

    def finished(self) -> bool:
        """Whether the run is marked as finished."""
        return bool(self.facts().get("finished"))

    def identity(self) -> str:
        """An identifier that stays with the run wherever its folder is moved."""
        identity = self.facts().get("id")
        if not isinstance(identity, str):
            identity = uuid.uuid4().hex
            self.note(id=identity)
        return identity

    # Scores ---------------------------------------------------------------------------------------

    def scores(self) -> Scores:
        """The content of `scores.json`."""
        return Scores.from_file(self.path / SCORES)

    def add_scores(
        self, name: str, scores: SetScores, files: Callable[[], dict[str, str]] = dict
    ) -> SetScores:
        """Record the scores on a test set. Scores that others add at the same time stay.

        Args:
            name: name of the test set.
            scores: the scores.
            files: writes the files that belong to the scores, such as predictions, and returns
                their hashes; no other process writes in between.

        Returns:
            The scores with the hashes of their files.
        """
        with score_lock(self.path):
            before = self.scores()
            recorded = scores.model_copy(update={"files": files()})
            before.with_set(name, recorded).write(self.path / SCORES)
        return recorded

    def add_paired(self, tests: list[PairedScore]) -> None:
        """Record paired tests against another run."""
        with score_lock(self.path):
            self.scores().with_paired(tests).write(self.path / SCORES)

    def retire_scores(self) -> None:
        """Move the scores aside before their model is replaced."""
        path = self.path / SCORES
        if path.is_file():
            os.replace(path, self.path / OLD_SCORES)

    # Metrics --------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of `metrics.jsonl`, in order.

        A killed run may leave an incomplete last line, which is skipped.
        """
        path = self.path / METRICS
        if not path.exists():
            return
        with reading(path, RunError, "remove it; only the curves of the run are lost."):
            lines = path.read_bytes().split(b"\n")
        last = len(lines) - 1  # empty, unless it is incomplete
        for number, line in enumerate(lines):
            try:
                row = json.loads(line) if line else None
            except (ValueError, RecursionError):
                row = line
            recorded = row.pop(_CHECKSUM, None) if isinstance(row, dict) else None
            if recorded is not None and isinstance(row, dict) and recorded != _checksum(row):
                raise RunError(
                    f"{path}, line {number + 1}: damaged or changed: its checksum is not the "
                    f"recorded one; remove the line (or `{_CHECKSUM}` from it, if you changed it "
                    "yourself), or the file: only curves are lost."
                )
            if isinstance(row, dict):
                yield row
            elif line and number < last:
                raise RunError(
                    f"{path}, line {number + 1}: damaged: must be an object with metrics, but is "
                    "not; remove the line, or the file: only curves are lost."
                )

    def rewind(self, step: int) -> None:
        """Remove the metrics of updates after `step`, which will be made again."""
        lines = [_line(row) for row in self.metrics() if _number(row.get("step")) <= step]
        write_text(self.path / METRICS, "".join(f"{line}\n" for line in lines))

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        path = self.path / METRICS
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(_line(row) + "\n")


_FACT_TYPES: dict[str, type | tuple[type, ...]] = {
    "commands": list,
    "versions": dict,
    "machine": dict,
    "data": dict,
    "averaged": list,
    "longest": int,
    "training_seconds": (int, float),
}
"""Types of the facts that are read again."""
_CHECKSUM = "crc32"
"""Key of a line of metrics that holds the checksum of the others."""


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _checksum(row: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(row).encode())


def _line(row: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(row))
    return json.dumps({**plain, _CHECKSUM: _checksum(plain)})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
