"""A run folder explains itself: config, versions, data, metrics as JSON lines, the exact command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..files import write_text
from ..recipes import write

CONFIG, RUN, METRICS, SCORES = "config.yaml", "run.json", "metrics.jsonl", "scores.json"
PACKAGES = ("floater-transformers", "torch", "transformers", "accelerate", "tokenizers", "datasets", "sacrebleu", "numpy")


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
            versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
            machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
            threads=torch.get_num_threads(),
            **facts,
        )

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        write_text(self.path / RUN, json.dumps({**self.facts(), **facts}, indent=2, default=str) + "\n")

    def facts(self) -> dict[str, Any]:
        """What run.json holds."""
        return read_facts(self.path / RUN)

    def scores(self) -> dict[str, Any]:
        """What scores.json holds: one entry a test set."""
        return read_facts(self.path / SCORES)

    def add_scores(self, name: str, scores: dict[str, Any]) -> None:
        """Remember scores under the name of a test set."""
        write_text(self.path / SCORES, json.dumps({**self.scores(), name: scores}, indent=2) + "\n")

    def forget_scores(self) -> None:
        """Remove scores, before the model they belong to is replaced."""
        (self.path / SCORES).unlink(missing_ok=True)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The metrics of a run, in order."""
        path = self.path / METRICS
        if path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if line.endswith("}"):  # a killed run may leave a broken last line
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise RunError(f"{path}, line {number}: damaged: {error}.") from None

    def rewind(self, step: int) -> None:
        """Forget metrics of updates after `step`, which will be made again."""
        kept = [json.dumps(row) for row in self.metrics() if row.get("step", 0) <= step]
        write_text(self.path / METRICS, "".join(f"{line}\n" for line in kept))

    def log(self, row: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_facts(path: Path) -> dict[str, Any]:
    """What a JSON file of facts holds; nothing where there is none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
    return found if isinstance(found, dict) else {}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def peak_memory() -> float | None:
    """The most memory that this process has held so far, in megabytes; None where the system does not tell."""
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
