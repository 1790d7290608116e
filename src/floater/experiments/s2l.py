"""Figure 3 of the paper, short to long: trained on short sentences, tested in bins of length far
beyond.
"""

from __future__ import annotations

from ..runs.results import Cell, Results, Table
from .arms import HOUR, Arm, Sources
from .base import Order, Training
from .scheduler import Runs
from .tables import bins, by_length, fact, scored, verdict


class ShortToLong(Training):
    """BLEU by source length."""

    name = "s2l"
    title = "Short to long (Figure 3)"
    sources = Sources(
        "translation/s2l/{key}.yaml", "translation/wmt14/s2l/{key}.yaml", hurried=HOUR
    )
    arms = (
        Arm("sinusoidal", "sinusoidal"),
        Arm("learned", "learned table, clamped"),
        Arm("recurrent", "recurrent"),
        Arm("rotary", "rotary"),
        Arm("flow-blocks", "flow, all blocks"),
        Arm("flow-qkv-scratch", "flow, q, k, v"),
    )

    def reproduce(self, order: Order) -> Results:
        arms, runs = self.runs(order)
        note = (
            f"{next(iter(runs.values()))[0].scores()['test']['data']['from']}; the paper shows this"
            " as a figure without numbers."
        )
        tables = [
            length_table(arms, runs, metric, f"{label} by source length, tokens", note)
            for metric, label in _METRICS
        ]
        tables.append(twice_table(arms, runs))
        figures = [
            by_length(arms, runs, metric, f"{label} by source length", label)
            for metric, label in _METRICS
        ]
        return self.results(order, runs).model_copy(
            update={
                "tables": tables,
                "figures": figures,
                "summary": leaders(arms, runs, "bleu", "BLEU"),
            }
        )


_METRICS = (("bleu", "BLEU"), ("chrf", "chrF"), ("exact", "Exact match, %"))


def length_table(arms: list[Arm], runs: Runs, metric: str, title: str, note: str) -> Table:
    """A score in each bin of source length, with parameters and time."""
    found = bins(runs)
    headings = [f"{label} (n={count})" for label, count in found.items()]
    rows: list[list[Cell]] = [
        [
            arm.name,
            *(scored(runs[arm.key], metric, label) for label in found),
            fact(runs[arm.key], "position_parameters"),
            fact(runs[arm.key], "training_seconds"),
        ]
        for arm in arms
    ]
    return Table(
        title=title,
        note=note,
        columns=["encoder", *headings, "position parameters", "training, s"],
        rows=rows,
    )


def twice_table(arms: list[Arm], runs: Runs) -> Table:
    """What is left of the quality at twice the trained length."""
    labels = list(bins(runs))
    edges = [int(label.split("-")[0].removesuffix("+")) for label in labels]
    trained = edges[1]
    twice = max(number for number, edge in enumerate(edges) if edge <= 2 * trained)
    rows: list[list[Cell]] = []
    for arm in arms:
        near, far = (scored(runs[arm.key], "bleu", labels[number]) for number in (0, twice))
        kept = None if near is None or far is None or not near.mean else 100 * far.mean / near.mean
        rows.append(
            [
                arm.name,
                near,
                far,
                kept,
                scored(runs[arm.key], "exact", labels[0]),
                scored(runs[arm.key], "exact", labels[twice]),
            ]
        )
    return Table(
        title="Twice the trained length",
        note=(
            f"BLEU and exact match on sources of {labels[0]} tokens, as in training, and of "
            f"{labels[twice]}."
        ),
        columns=[
            "encoder",
            "BLEU, trained",
            "BLEU, twice",
            "kept, %",
            "exact, trained, %",
            "exact, twice, %",
        ],
        rows=rows,
    )


def leaders(arms: list[Arm], runs: Runs, metric: str, name: str) -> list[str]:
    """Who leads in each bin."""
    found = (
        (label, count, verdict(arms, runs, metric, name, label))
        for label, count in bins(runs).items()
    )
    return [
        f"{label} tokens ({count} sentences): {words}."
        for label, count, words in found
        if words is not None
    ]
