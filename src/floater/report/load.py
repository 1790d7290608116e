"""Read run folders, reproductions and comparisons for a report, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FloaterError, RunError, first_line
from ..runs.comparison import COMPARISON, Comparison
from ..runs.encodings import Encodings
from ..runs.folder import CONFIG, RunFolder
from ..runs.results import RESULTS, Results
from ..runs.scores import LARGEST, Scores

_DEPTH = 3
"""How many levels below a given folder its runs may lie."""
_NOT_CURVES = ("step", "time", "epoch", "eval_seconds")
"""Numbers in the lines of metrics that are not plotted."""


@dataclass(frozen=True)
class Run:
    """The content of a run folder.

    Attributes:
        name: unique in a report.
        path: the folder.
        settings: content of `config.yaml`.
        config: text of `config.yaml`.
        facts: content of `run.json`.
        scores: content of `scores.json`.
        curves: metrics over the updates, as (update, value).
        encodings: the encodings that the run stored, if any.
    """

    name: str
    path: Path
    settings: dict[str, Any]
    config: str
    facts: dict[str, Any]
    scores: Scores
    curves: dict[str, list[tuple[float, float]]]
    encodings: Encodings | None

    def why_no_encodings(self) -> str:
        """The reason why there are no encodings to show."""
        positions = self.settings.get("positions")
        encoder = positions.get("encoder") if isinstance(positions, dict) else None
        kind = encoder.get("kind") if isinstance(encoder, dict) else None
        if kind == "rotary":
            return "Rotary encodings rotate queries and keys; there is no table to show."
        if kind == "relative":
            return "Relative positions have vectors for distances; there is no table to show."
        if kind == "none":
            return "This run has no position encoding."
        if encoder is None and not self.is_translation():
            return "It uses only the built-in positions of its model."
        return (
            f"Its encodings were not stored; `floater plot {self.path}` computes and stores them."
        )

    def is_translation(self) -> bool:
        """Whether the run trained a translation model."""
        return self.settings.get("task") in (None, "translation")

    def updates(self) -> tuple[int | None, int | None]:
        """The number of completed updates and of planned ones."""
        training = self.settings.get("training")
        planned = training.get("updates") if isinstance(training, dict) else None
        return integer(self.facts.get("updates")), integer(planned)


@dataclass(frozen=True)
class Material:
    """Everything that a report shows.

    Attributes:
        runs: the runs.
        reproductions: folders of reproductions, with their results.
        comparisons: folders that `floater compare` filled, with their content.
        notes: what could not be shown.
    """

    runs: list[Run]
    reproductions: list[tuple[Path, Results]]
    comparisons: list[tuple[Path, Comparison]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(paths: Sequence[Path]) -> Material:
    """Read runs, reproductions (with their runs), comparisons, and folders that contain them."""
    runs: dict[Path, Path] = {}
    reproductions: dict[Path, tuple[Path, Results]] = {}
    comparisons: dict[Path, tuple[Path, Comparison]] = {}
    notes = []
    for path in (inner for given in paths for inner in _folders(given)):
        if (path / RESULTS).is_file():
            results = Results.read(path)
            reproductions.setdefault(path.resolve(), (path, results))
            for run in results.run_folders(path):
                if is_run(run):
                    runs.setdefault(run.resolve(), run)
                else:
                    notes.append(f"{path.name} names the run {run}, but there is none.")
        elif (path / CONFIG).is_file():
            runs.setdefault(path.resolve(), path)
        else:
            comparison = Comparison.from_file(path / COMPARISON)
            if comparison.rows:
                comparisons.setdefault(path.resolve(), (path, comparison))
            else:
                notes.append(f"{path / COMPARISON} holds no rows, so there is nothing to compare.")
    names = _unique_names(list(runs))
    loaded = [read_run(path, name) for path, name in zip(runs.values(), names, strict=True)]
    notes += [f"{run.name}: {run.why_no_encodings()}" for run in loaded if run.encodings is None]
    return Material(loaded, list(reproductions.values()), list(comparisons.values()), notes)


def is_run(path: Path) -> bool:
    """Whether a path is a run folder; False for paths that no file can have, too."""
    return os.path.isfile(path / CONFIG)


def _folders(path: Path) -> list[Path]:
    """The folders of runs, reproductions and comparisons at or below a path."""
    folders = list(_below(path, _DEPTH))
    if not folders:
        problem = "but is neither" if path.exists() else "but does not exist"
        raise RunError(
            f"{path} must be the folder of a run (with {CONFIG}) or of a reproduction (with "
            f"{RESULTS}), {problem}."
        )
    return folders


def _below(path: Path, depth: int) -> Iterator[Path]:
    """Search a folder; the inside of a run or of a reproduction is not searched."""
    if any((path / name).is_file() for name in (CONFIG, RESULTS)):
        yield path
    elif depth and path.is_dir():
        if (path / COMPARISON).is_file():
            yield path
        for inner in sorted(path.iterdir()):
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _below(inner, depth - 1)


def _unique_names(paths: Sequence[Path]) -> list[str]:
    """The last component of each path, preceded by as many as it takes to be unique."""

    def tail(path: Path, count: int) -> str:
        return "/".join(path.parts[-count:])

    names = []
    for path in paths:
        count = 1
        while (
            count < len(path.parts)
            and sum(tail(other, count) == tail(path, count) for other in paths) > 1
        ):
            count += 1
        names.append(tail(path, count))
    return names


def read_run(path: Path, name: str) -> Run:
    """Read one run folder."""
    folder = RunFolder.existing(path)
    try:
        return Run(
            name=name,
            path=path,
            settings=folder.settings(),
            config=(path / CONFIG).read_text(encoding="utf-8"),
            facts=folder.facts(),
            scores=folder.scores(),
            curves=_curves(folder.metrics()),
            encodings=Encodings.read(path),
        )
    except FloaterError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, or nested too deeply
        raise RunError(f"{path} holds a damaged file: {first_line(error)}.") from None


def number(value: object) -> float | None:
    """A finite number that can be added up and drawn; None for every other value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    return None


def integer(value: object) -> int | None:
    """A finite number without its fraction; None for every other value."""
    finite = number(value)
    return None if finite is None else int(finite)


def _curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Every metric over the updates; the last value of an update counts."""
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        step = number(row.get("step"))
        for key, value in row.items():
            y = number(value)
            if step is not None and y is not None and key not in _NOT_CURVES:
                curves.setdefault(key, {})[step] = y
    return {
        key: sorted(points.items())
        for key, points in curves.items()
        if len(points) > 1 or key.startswith("eval_")
    }
