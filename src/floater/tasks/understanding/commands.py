"""What the command line does with understanding runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...errors import RunError
from ...training.records import RunFolder
from . import compare, run
from .config import UnderstandingConfig
from .evaluation import check_name, compare_runs, describe, difference, evaluate
from .models import load_tokenizer, load_trained
from .problem import Problem


@dataclass(frozen=True)
class Understanding:
    """A run that a config describes, and the comparison it belongs to."""

    kind: type[Problem[Any, Any]]
    config: UnderstandingConfig

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        """Train into a run folder."""
        return run.train(self.kind, self.config, path, resume=resume, console=console)

    def compare(self, path: Path, *, resume: bool, console: Console) -> dict[str, Any]:
        """Train all arms and seeds into a folder, and compare them."""
        return compare.compare(self.kind, self.config, path, resume=resume, console=console)

    def evaluate(
        self, path: Path, data: Path | None, *, against: Path | None, name: str, model: Path | None, console: Console
    ) -> None:
        """Measure a run on a file, or on its own sets; optionally compare it with another run."""
        folder = RunFolder.existing(path)
        other = None if against is None else RunFolder.existing(against)
        problem = self.kind(self.config)
        if data is not None:
            part = problem.read(data)
            sets = {name or data.name.removesuffix(".gz").rsplit(".", 1)[0]: part}
        else:
            sets = {key: part for key, part in problem.parts().items() if key != "train"}
            if name:
                sets = {name: sets["valid"]}
        for key in sets:
            check_name(key)
        self._measure(problem, folder, model, sets, console)
        if other is None:
            return
        for key, part in sets.items():
            if other.scores().get(key, {}).get("data", {}).get("sha256") != part.fingerprint()["sha256"]:
                self._measure(problem, other, None, {key: part}, console)
            found = compare_runs(problem, other, folder, key)
            folder.add_scores(f"{key} against {other.path.name}", found)
            for measure, paired in found.items():
                console.print(f"{key} against {against}: {difference(paired, measure)}", highlight=False)

    def _measure(
        self, problem: Problem[Any, Any], folder: RunFolder, model: Path | None, sets: dict[str, Any], console: Console
    ) -> None:
        place = model or folder.model
        if model is None and not folder.model.is_dir():
            raise RunError(f"{folder.path} holds no model; finish the run with --resume, or train with training.keep_model=true.")
        trained, tokenizer = load_trained(problem, place), load_tokenizer(str(place))
        for key, part in sets.items():
            scores = evaluate(problem, trained, part, tokenizer, folder, name=key)
            console.print(f"{folder.path.name}, {key}: {describe(scores)}", highlight=False)
