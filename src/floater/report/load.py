"""What a report is made from: run folders and reproductions, read without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FloaterError, RunError, first_line
from ..recipes import read
from ..runs.encodings import Encodings
from ..runs.folder import CONFIG, RunFolder, read_facts
from ..runs.results import RESULTS, Results

AGAINST = " against "
"""Between the name of a test set and that of another run, where scores.json keeps a paired test."""


COMPARISON = "comparison.json"
"""File of a folder that `floater compare` filled."""
_LARGEST = 1e100
_DEPTH = 3  # folders between a folder that is given and its runs


@dataclass(frozen=True)
class Score:
    """A score with the half-width of its interval."""

    score: float
    interval: float | None
    signature: str


@dataclass(frozen=True)
class Scored:
    """What a run scored on one test set, by metric; `bins` holds the same by source length, where
    it was asked for.
    """

    metrics: dict[str, Score]
    bins: dict[str, tuple[int, dict[str, Score]]]
    pairs: int | None
    beam: int | None
    seconds: float | None
    data: Any

    def comparable(self, other: Scored, metric: str) -> bool:
        """Whether both were measured on the same sentences in the same way."""
        same = (self.data, self.pairs, self.beam) == (other.data, other.pairs, other.beam)
        return same and self.metrics[metric].signature == other.metrics[metric].signature


@dataclass(frozen=True)
class Paired:
    """A paired test of a run against another one on a test set: the measure of the run minus that
    of the other.
    """

    test: str
    other: str
    measure: str
    difference: float
    low: float
    high: float
    p_value: float
    signature: str


@dataclass(frozen=True)
class Row:
    """Both arms of a comparison on one set, by one measure: medians over seeds, and their
    difference.
    """

    arm: str
    test: str
    measure: str
    base: float | None
    other: float | None
    difference: float
    low: float
    high: float
    p_value: float
    examples: int | None


@dataclass(frozen=True)
class Comparison:
    """What `floater compare` found in a folder."""

    path: Path
    rows: list[Row]


@dataclass(frozen=True)
class Run:
    """A run folder, read. `name` is unique in a report."""

    name: str
    path: Path
    settings: dict[str, Any]
    config: str
    facts: dict[str, Any]
    scores: dict[str, Scored]
    paired: list[Paired]
    curves: dict[str, list[tuple[float, float]]]
    positions: Encodings | None

    def missing(self) -> str:
        """Why there are no encodings to show."""
        where = self.settings.get("positions")
        encoder = where.get("encoder") if isinstance(where, dict) else None
        kind = encoder.get("kind") if isinstance(encoder, dict) else None
        if kind == "rotary":
            return "Rotary encodings turn queries and keys; there is no table to show."
        if kind == "none":
            return "This run has no position encoding."
        if encoder is None and self.settings.get("task") not in (None, "translation"):
            return "It has the pretrained model's own positions only."
        return f"Its encodings were not kept; `floater plot {self.path}` computes and keeps them."

    def updates(self) -> tuple[int | None, int | None]:
        """Updates that were made, and that were planned."""
        plan = self.settings.get("training")
        return whole(self.facts.get("updates")), (
            whole(plan.get("updates")) if isinstance(plan, dict) else None
        )


@dataclass(frozen=True)
class Material:
    """Everything a report shows."""

    runs: list[Run]
    reproductions: list[tuple[Path, Results]]
    notes: list[str] = field(default_factory=list)
    """What could not be shown."""
    comparisons: list[Comparison] = field(default_factory=list)
    """What `floater compare` found."""


def gather(paths: Sequence[Path]) -> Material:
    """Read run folders, reproductions (with their runs), and folders of either."""
    runs: dict[Path, Path] = {}
    reproductions: dict[Path, tuple[Path, Results]] = {}
    comparisons: dict[Path, Comparison] = {}
    notes = []
    for path in (inner for given in paths for inner in _folders(given)):
        if not any((path / name).is_file() for name in (CONFIG, RESULTS)):
            if (compared := _compared(path)) is None:
                notes.append(f"{path / COMPARISON} holds no comparison that can be read.")
            else:
                comparisons.setdefault(path.resolve(), compared)
            continue
        if not (path / RESULTS).is_file():
            runs.setdefault(path.resolve(), path)
            continue
        results = Results.read(path)
        reproductions.setdefault(path.resolve(), (path, results))
        for run in results.run_folders(path):
            if (run / CONFIG).is_file():
                runs.setdefault(run.resolve(), run)
            else:
                notes.append(f"{path.name} names the run {run}, but there is none.")
    names = _names(list(runs))
    found = [read_run(path, name) for path, name in zip(runs.values(), names, strict=True)]
    notes += [f"{run.name}: {run.missing()}" for run in found if run.positions is None]
    return Material(found, list(reproductions.values()), notes, list(comparisons.values()))


def _folders(path: Path) -> list[Path]:
    found = list(_below(path, _DEPTH))
    if not found:
        what = "but is neither" if path.exists() else "but there is none"
        raise RunError(
            f"{path} must be the folder of a run (with {CONFIG}) or of a reproduction (with "
            f"{RESULTS}), {what}."
        )
    return found


def _below(path: Path, depth: int) -> Iterator[Path]:
    """The runs, reproductions and comparisons in a folder; what lies inside one of the first two is
    not looked at.
    """
    if any((path / name).is_file() for name in (CONFIG, RESULTS)):
        yield path
    elif depth and path.is_dir():
        if (path / COMPARISON).is_file():
            yield path
        for inner in sorted(
            part for part in path.iterdir() if part.is_dir() and not part.name.startswith(".")
        ):
            yield from _below(inner, depth - 1)


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, and as many before it as tell them apart."""

    def tail(path: Path, count: int) -> str:
        return "/".join(path.parts[-count:])

    found = []
    for path in paths:
        count = 1
        while (
            count < len(path.parts)
            and sum(tail(other, count) == tail(path, count) for other in paths) > 1
        ):
            count += 1
        found.append(tail(path, count))
    return found


def read_run(path: Path, name: str) -> Run:
    """Read one run folder."""
    try:
        return _read_run(path, name)
    except FloaterError:
        raise
    except (
        ValueError,
        RecursionError,
    ) as error:  # bytes that are no text, values nested beyond reason
        raise RunError(f"{path} holds a file that is damaged: {first_line(error)}.") from None


def _read_run(path: Path, name: str) -> Run:
    folder = RunFolder.existing(path)
    scores = {test: entry for test, entry in folder.scores().items() if isinstance(entry, dict)}
    return Run(
        name=name,
        path=path,
        settings=read(path / CONFIG),
        config=(path / CONFIG).read_text(encoding="utf-8"),
        facts=folder.facts(),
        scores={test: _scored(entry) for test, entry in scores.items() if AGAINST not in test},
        paired=list(_paired(scores)),
        curves=_curves(folder.metrics()),
        positions=Encodings.read(path),
    )


def number(value: object) -> float | None:
    """A finite number of a size that can be added up and drawn, else None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return float(value) if good else None  # type: ignore[arg-type]


def whole(value: object) -> int | None:
    """A finite number without its fraction, else None."""
    found = number(value)
    return None if found is None else int(found)


def _scored(entry: Mapping[str, Any]) -> Scored:
    inner = entry.get("bins")
    bins = {
        str(label): (whole(part.get("pairs")) or 0, _metrics(part))
        for label, part in (inner.items() if isinstance(inner, dict) else ())
        if isinstance(part, dict)
    }
    pairs, beam, seconds = (
        whole(entry.get("pairs")),
        whole(entry.get("beam")),
        number(entry.get("seconds")),
    )
    return Scored(_metrics(entry), bins, pairs, beam, seconds, entry.get("data"))


def _metrics(entry: Mapping[str, Any]) -> dict[str, Score]:
    found = {}
    for key, value in entry.items():
        score = number(value.get("score")) if isinstance(value, dict) else None
        if score is not None:
            found[key] = Score(
                score, number(value.get("interval")), str(value.get("signature", ""))
            )
    return found


def _paired(scores: Mapping[str, Mapping[str, Any]]) -> Iterator[Paired]:
    """Paired tests: translation keeps the one of BLEU as it is, understanding keeps one for each
    measure, by name.
    """
    for key, entry in scores.items():
        test, between, other = key.partition(AGAINST)
        if between:
            for measure, part in (entry if "difference" not in entry else {"bleu": entry}).items():
                found = _difference(part)
                if found is not None:
                    yield Paired(test, other, measure, *found, str(part.get("signature", "")))


def _difference(entry: object) -> tuple[float, float, float, float] | None:
    """Difference, both ends of its interval and the p-value, where all of them are numbers."""
    if not isinstance(entry, dict):
        return None
    difference, low, high, p_value = (
        number(entry.get(name)) for name in ("difference", "low", "high", "p_value")
    )
    if difference is None or low is None or high is None or p_value is None:
        return None
    return difference, low, high, p_value


def _compared(path: Path) -> Comparison | None:
    """What `floater compare` found, as far as it can be read; None where that is nothing."""
    found = read_facts(path / COMPARISON)
    rows = []
    arms = found.get("arms")
    for arm, sets in arms.items() if isinstance(arms, dict) else ():
        for part, measures in sets.items() if isinstance(sets, dict) else ():
            for measure, entry in measures.items() if isinstance(measures, dict) else ():
                paired = _difference(entry)
                if paired is not None:
                    scores = number(entry.get("base")), number(entry.get("other"))
                    rows.append(
                        Row(arm, part, measure, *scores, *paired, whole(entry.get("examples")))
                    )
    return Comparison(path, rows) if rows else None


def _curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Every metric over the updates; what comes later for the same update wins."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        step = number(row.get("step"))
        for key, value in row.items():
            y = number(value)
            if (
                step is not None
                and y is not None
                and key not in ("step", "time", "epoch", "eval_seconds")
            ):
                found.setdefault(key, {})[step] = y
    return {
        key: sorted(points.items())
        for key, points in found.items()
        if len(points) > 1 or key.startswith("eval_")
    }
