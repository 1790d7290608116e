"""Tables of comparisons of pretrained models, with the numbers of Tables 3 to 5 of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..runs.comparison import Comparison
from ..runs.results import Cell, Paper, Table
from ..tasks.understanding.comparison_tables import conclusions
from .result_tables import mean

Published = Mapping[str, Mapping[str, tuple[float, float]]]
"""Numbers of the paper for RoBERTa without and with FLOATER, by size ("base", "large") and measure.
"""


def _glue(
    base: tuple[float, float], large: tuple[float, float], measure: str = "accuracy"
) -> Published:
    return {"base": {measure: base}, "large": {measure: large}}


PUBLISHED: dict[str, Published] = {
    "CoLA": _glue((63.6, 63.4), (68.0, 69.0), "matthews"),
    "SST-2": _glue((94.8, 95.1), (96.4, 96.7)),
    "MRPC": _glue((88.2, 89.0), (90.9, 91.4)),
    "QQP": _glue((91.9, 91.7), (92.2, 92.2)),
    "STS-B": _glue((91.2, 91.5), (92.4, 92.5), "pearson"),
    "MNLI": _glue((87.6, 87.7), (90.2, 90.4)),
    "QNLI": _glue((92.8, 93.1), (94.7, 94.8)),
    "RTE": _glue((78.7, 80.5), (86.6, 87.0)),
    "RACE": {"large": {"accuracy": (82.8, 83.3), "middle": (86.5, 87.1), "high": (81.3, 81.7)}},
    "SQuAD 1.1": {"large": {"f1": (94.6, 94.6), "exact": (88.9, 88.9)}},
    "SQuAD 2.0": {"large": {"f1": (89.4, 89.5), "exact": (86.5, 86.6)}},
}
"""Tables 3 (GLUE), 4 (RACE, test) and 5 (SQuAD, dev) of the paper, by benchmark."""


def comparison_table(
    comparisons: Mapping[str, Comparison], title: str, note: str, size: str
) -> Table:
    """Base and variants on every test set and measure.

    Args:
        comparisons: by the name of their benchmark.
        title: title of the table.
        note: about the data, and about the models of the paper.
        size: size of the models of the paper to show.
    """
    rows: list[list[Cell]] = []
    for name, comparison in comparisons.items():
        for row in comparison.rows:
            paper_scores = PUBLISHED[name][size].get(row.measure)
            rows.append(
                [
                    name,
                    row.test_set,
                    row.measure,
                    row.base,
                    row.other,
                    row.difference,
                    f"{row.low:+.2f} to {row.high:+.2f}",
                    f"{row.p_value:.3f}",
                    row.examples,
                    *([None, None] if paper_scores is None else map(_paper, paper_scores)),
                ]
            )
    return Table(
        title=title,
        note=(
            f"{note} Medians over seeds; interval and p-value from a paired bootstrap over "
            "examples, with the same resamples for all seeds."
        ),
        columns=[
            "task",
            "set",
            "measure",
            "without",
            "FLOATER",
            "difference",
            "95 % interval",
            "p",
            "examples",
            "paper, without",
            "paper, FLOATER",
        ],
        rows=rows,
    )


def by_seed(comparisons: Mapping[str, Comparison]) -> Table:
    """The main measures and training times over seeds."""
    rows: list[list[Cell]] = []
    for name, comparison in comparisons.items():
        for row in (row for row in comparison.rows if row.measure == comparison.main):
            variants = comparison.base, row.variant
            seconds = [
                [value for value in comparison.training_seconds[variant] if value is not None]
                for variant in variants
            ]
            rows.append(
                [
                    f"{name}, {row.test_set}",
                    row.measure,
                    len(comparison.seeds),
                    *(mean(row.seeds[variant]) for variant in variants),
                    *(mean(values) if values else None for values in seconds),
                ]
            )
    return Table(
        title="Runs by seed",
        note=(
            "Mean ± standard deviation over seeds; training time in seconds, on a machine that may "
            "have been busy otherwise."
        ),
        columns=["task", "measure", "seeds", "without", "FLOATER", "without, s", "FLOATER, s"],
        rows=rows,
    )


def published(names: Sequence[str]) -> Table:
    """The numbers of the paper for these benchmarks."""
    rows: list[list[Cell]] = [
        [
            name,
            size,
            measure,
            _paper(without),
            _paper(with_flow),
            _paper(round(with_flow - without, 1)),
        ]
        for name in names
        for size, measures in PUBLISHED[name].items()
        for measure, (without, with_flow) in measures.items()
    ]
    return Table(
        title="Numbers of the paper",
        note=(
            "For RoBERTa. The paper does not name the measures of GLUE; we assume those of the "
            "RoBERTa paper."
        ),
        columns=["task", "size", "measure", "without", "FLOATER", "difference"],
        rows=rows,
    )


def summary(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Wins and losses of our runs and of the paper, and the check before training."""
    ours = conclusions(
        [comparison.model_copy(update={"name": name}) for name, comparison in comparisons.items()]
    )
    return [
        *ours,
        *(
            line
            for size in ("base", "large")
            if (line := _paper_wins(list(comparisons), size)) is not None
        ),
    ]


def _paper_wins(names: Sequence[str], size: str) -> str | None:
    """Wins of the paper on the first measure of each benchmark; None if it has no such model."""
    pairs = [
        next(iter(PUBLISHED[name][size].values())) for name in names if size in PUBLISHED[name]
    ]
    if not pairs:
        return None
    wins = sum(with_flow > without for without, with_flow in pairs)
    losses = sum(with_flow < without for without, with_flow in pairs)
    ties = len(pairs) - wins - losses
    return (
        f"The {size} model of the paper: {wins} wins, {losses} losses, {ties} ties; the paper has "
        "no intervals."
    )


def _paper(value: float) -> Paper:
    return Paper(paper=value)
