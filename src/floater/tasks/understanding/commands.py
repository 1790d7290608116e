"""What the command line does with understanding runs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers.utils import logging

from ...errors import ArgumentError, RunError
from ...recipes import read
from ...training.locking import in_use
from ...training.records import CONFIG, RunFolder
from . import compare, run
from .config import UnderstandingConfig
from .evaluation import check_name, compare_runs, data_of, describe, difference, evaluate
from .models import load_tokenizer, load_trained, locate
from .problem import Part, Problem


@dataclass(frozen=True)
class Understanding:
    """A run that a config describes, and the comparison it belongs to."""

    kind: type[Problem[Any, Any]]
    config: UnderstandingConfig

    def check(self) -> None:
        """Find the model and read the data: what is wrong with a file is said before hours are
        spent on others.
        """
        locate(self.config.model.name)
        self.kind(self.config).parts()

    def train(self, path: Path, *, resume: bool, console: Console) -> RunFolder:
        """Train into a run folder."""
        return run.train(self.kind, self.config, path, resume=resume, console=console)

    def compare(self, path: Path, *, resume: bool, console: Console) -> dict[str, Any]:
        """Train all arms and seeds into a folder, and compare them."""
        return compare.compare(self.kind, self.config, path, resume=resume, console=console)

    def evaluate(
        self,
        path: Path,
        data: Path | None,
        *,
        against: Path | None,
        name: str,
        model: Path | None,
        console: Console,
    ) -> None:
        """Measure a run on a file, or on its own sets; optionally compare it with another run."""
        with ExitStack() as used:
            for one in {path, against or path}:
                used.enter_context(in_use(RunFolder.existing(one).path, "evaluate", alone=False))
            self._evaluate(path, data, against=against, name=name, model=model, console=console)

    def _evaluate(
        self,
        path: Path,
        data: Path | None,
        *,
        against: Path | None,
        name: str,
        model: Path | None,
        console: Console,
    ) -> None:
        logging.disable_progress_bar()  # bars of loading would break ours
        folder = RunFolder.existing(path)
        other = None if against is None else self._partner(RunFolder.existing(against))
        config = self.config
        if data is not None:  # the whole file
            whole = config.data.model_copy(update={"max_valid": None})  # type: ignore[attr-defined]
            config = config.model_copy(update={"data": whole})
        problem = self.kind(config)
        own = (
            {key: part for key, part in problem.parts().items() if key != "train"}
            if data is None
            else {}
        )
        if data is not None:
            sets = {name or data.name.removesuffix(".gz").rsplit(".", 1)[0]: problem.read(data)}
        elif name:
            sets = {name: own["valid"]}
        else:
            sets = own
        for key, part in sets.items():
            check_name(key)
            self._keeps(folder, key, part, model)
            if other is not None:
                self._keeps(other[0], key, part, None)
        found = self._measure(problem, folder, model, sets, console)
        if other is None:
            return
        partner, theirs = other
        for key, part in sets.items():
            if problem.main not in found[key]:
                raise ArgumentError(
                    f"{part.name} must have labels for a comparison (--against), but has none."
                )
            if data_of(partner, key) != part.fingerprint()["sha256"]:
                self._measure(theirs, partner, None, {key: part}, console)
            pairs = compare_runs(problem, partner, folder, key)
            folder.add_scores(f"{key} against {partner.path.name}", pairs)
            for measure, paired in pairs.items():
                _say(console, f"{key} against {against}: {difference(paired, measure)}")

    def _partner(self, folder: RunFolder) -> tuple[RunFolder, Problem[Any, Any]]:
        """A run to compare with, which must be of the same task."""
        settings = read(folder.path / CONFIG)
        ours, theirs = (_called(one) for one in (self.config.dump(), settings))
        if ours != theirs:
            raise ArgumentError(
                f"`--against` must be a run of the same task ({ours}), but {folder.path} is one of "
                f"{theirs}."
            )
        return folder, self.kind(type(self.config)(**settings))

    @staticmethod
    def _keeps(folder: RunFolder, key: str, part: Part, model: Path | None) -> None:
        """Refuse to put something else in the place of a run's own scores."""
        own = folder.facts().get("data", {}).get(key)
        if own is None:
            return
        if model is not None:
            raise ArgumentError(
                f"`--model` needs `--name`: {key!r} is where {folder.path} keeps the scores of its "
                "own weights."
            )
        found = part.fingerprint()
        if own.get("sha256") != found["sha256"]:
            raise ArgumentError(
                f"{found['from']} cannot be kept as {key!r}, a set of {folder.path} that is "
                "another; give --name."
            )

    def _measure(
        self,
        problem: Problem[Any, Any],
        folder: RunFolder,
        model: Path | None,
        sets: dict[str, Any],
        console: Console,
    ) -> dict[str, dict[str, Any]]:
        place = model or folder.model
        if model is None and not folder.model.is_dir():
            done = folder.facts().get("finished")
            advice = "give weights with --model" if done else "finish the run with --resume"
            why = ": it was trained with `keep_model: false`, or measured as it is" if done else ""
            raise RunError(f"{folder.path} holds no model{why}; {advice}.")
        trained, tokenizer = load_trained(problem, place), load_tokenizer(str(place))
        found = {}
        for key, part in sets.items():
            found[key] = evaluate(problem, trained, part, tokenizer, folder, name=key)
            _say(console, f"{folder.path.name}, {key}: {describe(found[key])}")
        return found


def _called(settings: dict[str, Any]) -> str:
    """What a message calls the task of a config."""
    data = settings.get("data")
    return " ".join(
        filter(
            None, (str(settings.get("task")), data.get("name") if isinstance(data, dict) else None)
        )
    )


def _say(console: Console, words: str) -> None:
    console.print(words, highlight=False, markup=False, soft_wrap=True)
