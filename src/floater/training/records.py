"""A run folder explains itself: config, versions, data, metrics as JSON lines, the exact
command.
"""

from __future__ import annotations

import hashlib
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

from ..errors import RunError, brief, first_line
from ..files import reading, write_text, writing
from ..recipes import write
from .locking import turn

CONFIG, RUN, METRICS, SCORES = "config.yaml", "run.json", "metrics.jsonl", "scores.json"
OLD_SCORES = "scores.old.json"
"""Scores of a model that was replaced."""
PACKAGES = (
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
    """Paths and files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.vocabulary = path / "vocabulary"
        self.predictions = path / "predictions"

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was started earlier."""
        if not (path / CONFIG).is_file():
            raise RunError(f"{path} must be the folder of a run (with {CONFIG}), but is not.")
        return cls(path)

    def begin(self, settings: dict[str, Any], facts: dict[str, Any]) -> None:
        """Write the config as resolved, and what the run was made with."""
        import torch  # noqa: PLC0415  (run folders are read where it is not installed)

        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / CONFIG, write(settings))
        command = shlex.join(["floater", *sys.argv[1:]])
        self.note(
            commands=[*self.facts().get("commands", []), command],
            versions={
                "python": platform.python_version(),
                **{name: _version(name) for name in PACKAGES},
            },
            machine={
                "system": platform.system(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
            threads=torch.get_num_threads(),
            **facts,
        )

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        write_facts(self.path / RUN, {**self.facts(), **facts})

    def facts(self) -> dict[str, Any]:
        """What run.json holds."""
        path = self.path / RUN
        if not path.exists() and (
            self.model.is_dir() or any(self.checkpoints.glob("checkpoint-*"))
        ):
            raise RunError(
                f"{self.path} must hold {RUN}, which says what it was trained on and whether it is "
                "finished, but does not; bring it back, or train into another --out."
            )
        found = read_facts(path)
        values = {
            **found,
            **{f"data.{name}": part for name, part in _object(found, "data").items()},
        }
        for name, value in values.items():
            wanted = dict if name.startswith("data.") else _KINDS.get(name, object)
            if not isinstance(value, wanted) or (wanted is not object and isinstance(value, bool)):
                raise RunError(
                    f"{path} must not hold {brief(value)} as `{name}`, but does; it is damaged: "
                    "bring back a copy."
                )
        return found

    def identity(self) -> str:
        """What tells this run from all others, wherever its folder is moved to."""
        found = self.facts().get("id")
        if not isinstance(found, str):
            found = uuid.uuid4().hex
            self.note(id=found)
        return found

    def scores(self) -> dict[str, Any]:
        """What scores.json holds: one entry a test set."""
        return read_facts(self.path / SCORES)

    def scored(self, name: str) -> dict[str, Any]:
        """The entry of one test set; empty where there is none that can be read."""
        found = self.scores().get(name)
        return found if isinstance(found, dict) else {}

    def add_scores(
        self, name: str, scores: dict[str, Any], files: Callable[[], object] = lambda: None
    ) -> None:
        """Remember scores under the name of a test set; what others add at the same time stays.

        Args:
            name: of the test set.
            scores: one entry of scores.json.
            files: writes what belongs to the scores, such as predictions; nobody else writes in
                between.
        """
        with turn(self.path):
            before = self.scores()
            files()
            write_facts(self.path / SCORES, {**before, name: scores})

    def retire_scores(self) -> None:
        """Put scores aside, before the model they belong to is replaced."""
        path = self.path / SCORES
        if path.is_file():
            os.replace(path, self.path / OLD_SCORES)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The metrics of a run, in order.

        A killed run may leave a broken last line, which is passed over.
        """
        path = self.path / METRICS
        if not path.exists():
            return
        with reading(path, RunError, "remove it; only the curves of the run are lost."):
            lines = path.read_bytes().split(b"\n")
        last = len(lines) - 1  # empty, unless it is broken
        for number, line in enumerate(lines):
            try:
                row = json.loads(line) if line else None
            except (ValueError, RecursionError):
                row = line
            known = row.pop(_SUM, None) if isinstance(row, dict) else None
            if known is not None and isinstance(row, dict) and known != _sum(row):
                raise RunError(
                    f"{path}, line {number + 1}: damaged or changed: its sum is not the recorded "
                    f"one; remove the line (or `{_SUM}` from it, if the change is yours), or the "
                    "file: only curves are lost."
                )
            if isinstance(row, dict):
                yield row
            elif line and number < last:
                raise RunError(
                    f"{path}, line {number + 1}: damaged: must be an object with metrics, but is "
                    "not; remove the line, or the file: only curves are lost."
                )

    def rewind(self, step: int) -> None:
        """Forget metrics of updates after `step`, which will be made again."""
        kept = [_line(row) for row in self.metrics() if _number(row.get("step")) <= step]
        write_text(self.path / METRICS, "".join(f"{line}\n" for line in kept))

    def log(self, row: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        path = self.path / METRICS
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(_line(row) + "\n")


_KINDS: dict[str, type | tuple[type, ...]] = {
    "commands": list,
    "versions": dict,
    "machine": dict,
    "data": dict,
    "averaged": list,
    "longest": int,
    "training_seconds": (int, float),
}
"""What facts are, where they are read again."""
_ANEW = "bring back a copy, or move it away and make it anew."


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


_SUM = "crc32"
"""Key under which a line of metrics holds the sum of its others."""


def _sum(row: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(row).encode())


def _line(row: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(row))
    return json.dumps({**plain, _SUM: _sum(plain)})


_HASH = "facts_sha256"
"""Key under which a file of facts holds the hash of all others."""


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write a JSON file of facts, with a hash of them."""
    plain = json.loads(json.dumps(facts, default=str))
    write_text(path, json.dumps({**plain, _HASH: _hash(plain)}, indent=2) + "\n")


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_facts(path: Path) -> dict[str, Any]:
    """What a JSON file of facts holds; nothing where there is none.

    Facts that are not the recorded ones are refused.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {first_line(error).rstrip('.')}; {_ANEW}") from None
    if not isinstance(found, dict):
        raise RunError(
            f"{path} is damaged: it must hold an object, but holds {brief(found)}; {_ANEW}"
        )
    recorded = found.pop(_HASH, None)
    if recorded is not None and recorded != _hash(found):
        raise RunError(
            f"{path} is damaged or was changed: its hash is not the recorded one; bring back a "
            f"copy, or remove `{_HASH}` from it if the change is yours."
        )
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def peak_memory() -> float | None:
    """The most memory that this process has held so far, in megabytes; None where the system does
    not tell.
    """
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
