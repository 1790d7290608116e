"""Figure 3 of the paper, short to long: trained on short sentences, tested in bins of length far
beyond.
"""

from __future__ import annotations

from ..runs.results import Cell, Results, Table
from .base import Request, TrainingItem
from .result_tables import bins, by_length, fact, scored, test_data, verdict
from .scheduler import Runs
from .variants import HOUR, Sources, Variant


class ShortToLong(TrainingItem):
    """BLEU by source length."""

    name = "s2l"
    title = "Short to long (Figure 3)"
    sources = Sources(
        "translation/s2l/{key}.yaml", "translation/wmt14/s2l/{key}.yaml", hurried=HOUR
    )
    variants = (
        Variant("sinusoidal", "sinusoidal"),
        Variant("learned", "learned table, clamped"),
        Variant("recurrent", "recurrent"),
        Variant("rotary", "rotary"),
        Variant("flow-blocks", "flow, all blocks"),
        Variant("flow-qkv-scratch", "flow, q, k, v"),
    )

    def reproduce(self, request: Request) -> Results:
        variants, runs = self.runs(request)
        note = f"{test_data(runs)}; the paper shows this as a figure without numbers."
        tables = [
            length_table(variants, runs, metric, f"{label} by source length, tokens", note)
            for metric, label in _METRICS
        ]
        tables.append(twice_table(variants, runs))
        figures = [
            by_length(variants, runs, metric, f"{label} by source length", label)
            for metric, label in _METRICS
        ]
        return self.results(request, runs).model_copy(
            update={
                "tables": tables,
                "figures": figures,
                "summary": leaders(variants, runs, "bleu", "BLEU"),
            }
        )


_METRICS = (("bleu", "BLEU"), ("chrf", "chrF"), ("exact", "Exact match, %"))


def length_table(variants: list[Variant], runs: Runs, metric: str, title: str, note: str) -> Table:
    """A score in each bin of source length, with parameters and time."""
    found = bins(runs)
    headings = [f"{label} (n={count})" for label, count in found.items()]
    rows: list[list[Cell]] = [
        [
            variant.name,
            *(scored(runs[variant.key], metric, label) for label in found),
            fact(runs[variant.key], "position_parameters"),
            fact(runs[variant.key], "training_seconds"),
        ]
        for variant in variants
    ]
    return Table(
        title=title,
        note=note,
        columns=["encoder", *headings, "position parameters", "training, s"],
        rows=rows,
    )


def twice_table(variants: list[Variant], runs: Runs) -> Table:
    """What is left of the quality at twice the trained length."""
    labels = list(bins(runs))
    edges = [int(label.split("-")[0].removesuffix("+")) for label in labels]
    trained = edges[1]
    twice = max(number for number, edge in enumerate(edges) if edge <= 2 * trained)
    rows: list[list[Cell]] = []
    for variant in variants:
        near, far = (scored(runs[variant.key], "bleu", labels[number]) for number in (0, twice))
        kept = None if near is None or far is None or not near.mean else 100 * far.mean / near.mean
        rows.append(
            [
                variant.name,
                near,
                far,
                kept,
                scored(runs[variant.key], "exact", labels[0]),
                scored(runs[variant.key], "exact", labels[twice]),
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


def leaders(variants: list[Variant], runs: Runs, metric: str, name: str) -> list[str]:
    """Who leads in each bin."""
    found = (
        (label, count, verdict(variants, runs, metric, name, label))
        for label, count in bins(runs).items()
    )
    return [
        f"{label} tokens ({count} sentences): {words}."
        for label, count, words in found
        if words is not None
    ]
