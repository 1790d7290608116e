"""The results in words: claims only what a paired test or the intervals support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..runs.scores import PairedScore, Score
from .load import Run, integer

LABELS = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "paper_bleu": "the paper's BLEU"}
_SMALL_DIFFERENCES = frozenset({"loss", "perplexity", "bits", "log_likelihood"})
"""Measures that are shown with more digits."""
_MAX_COMPARED = 3
"""Number of runs that sentences compare with the best one; the tables show all of them."""


def label(measure: str) -> str:
    """The name of a measure on the page."""
    return LABELS.get(measure, measure.replace("_", " "))


def signed(value: float, measure: str) -> str:
    """A difference as text, with more digits for losses, which differ by little."""
    return f"{value:+.4f}" if measure in _SMALL_DIFFERENCES else f"{value:+.2f}"


def all_test_sets(runs: Sequence[Run]) -> list[str]:
    """Names of all test sets, in the order in which they first appear."""
    return list(dict.fromkeys(test_set for run in runs for test_set in run.scores.sets))


def scored_on(runs: Sequence[Run], test_set: str) -> list[Run]:
    """The runs that were scored on a test set."""
    return [run for run in runs if test_set in run.scores.sets]


def all_measures(runs: Sequence[Run], test_set: str) -> list[str]:
    """All measures that some run was scored with on a test set."""
    scored = scored_on(runs, test_set)
    return list(dict.fromkeys(name for run in scored for name in run.scores.sets[test_set].scores))


def unit(runs: Sequence[Run]) -> str:
    """What the examples of runs are called."""
    return "sentences" if all(run.is_translation() for run in runs) else "examples"


def sentences(runs: Sequence[Run]) -> list[str]:
    """The summary of runs."""
    on_sets = [sentence for name in all_test_sets(runs) for sentence in _on_set(name, runs)]
    return [*on_sets, *_progress(runs), *_parameters(runs)]


def _on_set(test_set: str, runs: Sequence[Run]) -> Iterator[str]:
    """Sentences about the first measure on a test set."""
    measure = next(iter(all_measures(runs, test_set)), None)
    if measure is None:
        return
    groups = _comparable_groups(test_set, measure, runs)
    for group in groups:
        best, others = group[0], group[1:]
        scores = [_value(run.scores.sets[test_set].scores[measure]) for run in group]
        listed = [f"{run.name} {score}" for run, score in zip(group, scores, strict=True)]
        listed[0] = f"{best.name} reaches {scores[0]} {label(measure)}"
        count = best.scores.sets[test_set].examples
        size = f" ({count:,} {unit([best])})" if count else ""
        yield f"On {test_set}{size}, {_join(listed)}."
        yield from _against_others(best, others[:_MAX_COMPARED], test_set, measure)
    for group in groups[1:]:
        yield (
            f"{groups[0][0].name} and {group[0].name} were not scored on the same data in the same "
            "way: their scores cannot be compared."
        )


def _comparable_groups(test_set: str, measure: str, runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs whose scores can be compared, the best run of each first."""

    def score(run: Run) -> float:
        return run.scores.sets[test_set].scores[measure].score

    scored = [
        run for run in scored_on(runs, test_set) if measure in run.scores.sets[test_set].scores
    ]
    groups: list[list[Run]] = []
    for run in sorted(scored, key=lambda run: -_sign(run, test_set, measure) * score(run)):
        scores = run.scores.sets[test_set]
        for group in groups:
            if group[0].scores.sets[test_set].comparable(scores, measure):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _against_others(best: Run, others: Sequence[Run], test_set: str, measure: str) -> Iterator[str]:
    """The best run against others: by paired tests if there are any, else by intervals."""
    equal, separate, overlapping, without_intervals = [], [], [], []
    for other in others:
        paired = paired_test(best, other, test_set, measure)
        if paired is not None:
            yield _tested(best, other, paired)
            continue
        ours, theirs = (run.scores.sets[test_set].scores[measure] for run in (best, other))
        lead = _sign(best, test_set, measure) * (ours.score - theirs.score)
        phrase = f"{other.name} by {lead:.2f}"
        if lead == 0:
            equal.append(other.name)
        elif ours.interval is None or theirs.interval is None:
            without_intervals.append(phrase)
        elif lead > ours.interval + theirs.interval:
            separate.append(phrase)
        else:
            overlapping.append(phrase)
    if equal:
        yield f"{best.name} has the same score as {_join(equal)}."
    relation = f"{best.name} is " + ("above" if _sign(best, test_set, measure) > 0 else "below")
    if separate:
        yield f"{relation} {_join(separate)}; their 95 % intervals do not overlap."
    if overlapping:
        yield (
            f"{relation} {_join(overlapping)}, but their 95 % intervals overlap; without a paired "
            "test (floater evaluate RUN --against OTHER) this does not show that it is better."
        )
    if without_intervals:
        yield (
            f"{relation} {_join(without_intervals)}; without intervals this does not show that it "
            "is better."
        )


def _sign(run: Run, test_set: str, measure: str) -> int:
    """1 if more is better, -1 if less is better."""
    return 1 if run.scores.sets[test_set].scores[measure].more_is_better else -1


def paired_test(run: Run, other: Run, test_set: str, measure: str) -> PairedScore | None:
    """The paired test between two runs, whichever of them recorded it, as run - other."""
    for test in run.scores.paired:
        if (test.test_set, test.against, test.measure) == (test_set, other.path.name, measure):
            return test
    for test in other.scores.paired:
        if (test.test_set, test.against, test.measure) == (test_set, run.path.name, measure):
            return PairedScore(
                test_set=test_set,
                against=other.path.name,
                measure=measure,
                base=test.other,
                other=test.base,
                difference=-test.difference,
                low=-test.high,
                high=-test.low,
                p_value=test.p_value,
                signature=test.signature,
                more_is_better=test.more_is_better,
            )
    return None


def _tested(best: Run, other: Run, paired: PairedScore) -> str:
    difference, low, high = (
        signed(value, paired.measure) for value in (paired.difference, paired.low, paired.high)
    )
    numbers = (
        f"{difference} {label(paired.measure)} (95 % {low} to {high}, p = {paired.p_value:.3f})"
    )
    better = paired.low > 0 if paired.more_is_better else paired.high < 0
    if better and paired.p_value < 0.05:
        return f"{best.name} is better than {other.name} by a paired test: {numbers}."
    return f"A paired test does not distinguish {best.name} from {other.name}: {numbers}."


def _progress(runs: Sequence[Run]) -> Iterator[str]:
    """Runs that have not completed their planned updates."""
    stages: dict[tuple[int | None, int], list[str]] = {}
    for run in runs:
        completed, planned = run.updates()
        if planned is not None and (completed is None or completed < planned):
            stages.setdefault((completed, planned), []).append(run.name)
    for (completed, planned), names in stages.items():
        have, their = ("has", "its") if len(names) == 1 else ("have", "their")
        progress = (
            f"{have} not completed all"
            if completed is None
            else f"{have} completed {completed:,} of"
        )
        yield (
            f"{_join(names)} {progress} {planned:,} updates: {their} scores may still change, "
            "unless training was stopped early on purpose."
        )


def _parameters(runs: Sequence[Run]) -> Iterator[str]:
    counts = []
    for run in runs:
        total = integer(run.facts.get("parameters"))
        positions = integer(run.facts.get("position_parameters"))
        if total is not None and positions is not None and total > 0:
            share = f" ({100 * positions / total:.1f} %)" if positions else ""
            counts.append(f"{run.name} {positions:,}{share}")
    if counts:
        yield f"Parameters of the position encoding: {_join(counts)}."


def _value(score: Score) -> str:
    return f"{score.score:.2f}" + ("" if score.interval is None else f" ± {score.interval:.2f}")


def _join(phrases: Sequence[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
