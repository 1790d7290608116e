"""What was found, in words: a claim only where a test or an interval carries it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .load import Paired, Run, Score, whole

LABELS = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "paper_bleu": "the paper's BLEU"}
LESS_IS_BETTER = frozenset({"loss", "perplexity"})
_MOST = 3  # runs that are compared with the best one in words; the tables have them all


def label(metric: str) -> str:
    """What to call a metric."""
    return LABELS.get(metric, metric.replace("_", " "))


def tests_of(runs: Sequence[Run]) -> list[str]:
    """Names of all test sets, in the order in which they are met."""
    return list(dict.fromkeys(test for run in runs for test in run.scores))


def metrics_of(runs: Sequence[Run], test: str) -> list[str]:
    """All metrics that some run was scored with on a test set."""
    return list(
        dict.fromkeys(
            metric for run in runs if test in run.scores for metric in run.scores[test].metrics
        )
    )


def sentences(runs: Sequence[Run]) -> list[str]:
    """The summary of some runs."""
    found = [sentence for test in tests_of(runs) for sentence in _on(test, runs)]
    return [*found, *_progress(runs), *_sizes(runs)]


def _on(test: str, runs: Sequence[Run]) -> Iterator[str]:
    metric = next(iter(metrics_of(runs, test)), None)
    if metric is None:
        return
    sign = _sign(metric)
    scored = sorted(
        (run for run in runs if test in run.scores and metric in run.scores[test].metrics),
        key=lambda run: -sign * run.scores[test].metrics[metric].score,
    )
    groups: list[list[Run]] = []  # of runs that can be compared
    for run in scored:
        near = next(
            (
                group
                for group in groups
                if group[0].scores[test].comparable(run.scores[test], metric)
            ),
            None,
        )
        if near is None:
            groups.append([run])
        else:
            near.append(run)
    for group in groups:
        best, others = group[0], group[1:]
        listed = [f"{run.name} {_value(run.scores[test].metrics[metric])}" for run in group]
        listed[0] = (
            f"{best.name} reaches {_value(best.scores[test].metrics[metric])} {label(metric)}"
        )
        pairs = best.scores[test].pairs
        of = f" ({pairs:,} sentences)" if pairs else ""
        yield f"On {test}{of}, {_and(listed)}."
        yield from _compared(best, others[:_MOST], test, metric)
    for group in groups[1:]:
        yield (
            f"{groups[0][0].name} and {group[0].name} were not scored on the same data in the same "
            "way: their scores cannot be compared."
        )


def _compared(best: Run, others: Sequence[Run], test: str, metric: str) -> Iterator[str]:
    """The best run against others: by paired tests where they were made, else by intervals, else
    without a claim.
    """
    ours = best.scores[test]
    apart, overlapping, bare = [], [], []
    for other in others:
        theirs = other.scores[test]
        mine, its = ours.metrics[metric], theirs.metrics[metric]
        paired = paired_test(best, other, test, metric)
        ahead = _sign(metric) * (mine.score - its.score)
        words = f"{other.name} by {ahead:.2f}"
        if paired is not None:
            yield _tested(best, other, paired)
        elif mine.interval is None or its.interval is None:
            bare.append(words)
        elif ahead > mine.interval + its.interval:
            apart.append(words)
        else:
            overlapping.append(words)
    where = "above" if _sign(metric) > 0 else "below"
    if apart:
        yield f"{best.name} is {where} {_and(apart)}; their 95 % intervals do not overlap."
    if overlapping:
        yield (
            f"{best.name} is {where} {_and(overlapping)}, but their 95 % intervals overlap, and "
            "without a paired test (floater evaluate RUN --against OTHER) this is no claim that "
            "it is better."
        )
    if bare:
        yield (
            f"{best.name} is {where} {_and(bare)}, without intervals: nothing can be said of what "
            "that means."
        )


def _sign(metric: str) -> int:
    """1 where more is better, -1 where less is."""
    return -1 if metric in LESS_IS_BETTER else 1


def signed(value: float, metric: str) -> str:
    """A difference as text: losses differ by little, all others are in per cent."""
    return f"{value:+.4f}" if metric in LESS_IS_BETTER else f"{value:+.2f}"


def paired_test(run: Run, other: Run, test: str, metric: str) -> Paired | None:
    """The paired test between two runs, whichever of them holds it; its difference is run -
    other.
    """
    for paired in run.paired:
        if (paired.test, paired.other, paired.measure) == (test, other.path.name, metric):
            return paired
    for paired in other.paired:
        if (paired.test, paired.other, paired.measure) == (test, run.path.name, metric):
            values = (-paired.difference, -paired.high, -paired.low, paired.p_value)
            return Paired(test, other.path.name, metric, *values, paired.signature)
    return None


def _tested(best: Run, other: Run, paired: Paired) -> str:
    by, low, high = (
        signed(value, paired.measure) for value in (paired.difference, paired.low, paired.high)
    )
    figures = f"{by} {label(paired.measure)} (95 % {low} to {high}, p = {paired.p_value:.3f})"
    better = paired.low > 0 if _sign(paired.measure) > 0 else paired.high < 0
    if better and paired.p_value < 0.05:
        return f"{best.name} is better than {other.name} by a paired test: {figures}."
    return f"A paired test does not tell {best.name} and {other.name} apart: {figures}."


def _progress(runs: Sequence[Run]) -> Iterator[str]:
    stages: dict[tuple[int | None, int], list[str]] = {}
    for run in runs:
        made, planned = run.updates()
        if planned is not None and (made is None or made < planned):
            stages.setdefault((made, planned), []).append(run.name)
    for (made, planned), names in stages.items():
        done = "not yet made all of" if made is None else f"made {made:,} of"
        have, their = ("has", "its") if len(names) == 1 else ("have", "their")
        yield (
            f"{_and(names)} {have} {done} {planned:,} updates: {their} numbers may still change, "
            "unless stopped on purpose."
        )


def _sizes(runs: Sequence[Run]) -> Iterator[str]:
    words = []
    for run in runs:
        total, own = whole(run.facts.get("parameters")), whole(run.facts.get("position_parameters"))
        if total is not None and own is not None and total > 0:
            words.append(f"{run.name} {own:,}" + (f" ({100 * own / total:.1f} %)" if own else ""))
    if words:
        yield f"Parameters spent on positions: {_and(words)}."


def _value(score: Score) -> str:
    return f"{score.score:.2f}" + ("" if score.interval is None else f" ± {score.interval:.2f}")


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
