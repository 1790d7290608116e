"""Trained on short sentences, tested on much longer ones: Figure 3 of the paper on real text, and
the same on the embedded corpus.
"""

from __future__ import annotations

from typing import ClassVar

from ..printing import print_text
from ..runs.results import Cell, Mean, Results, Table
from .base import ReproductionRequest, TrainingItem
from .result_tables import (
    by_length,
    fact,
    lead_table,
    length_bins,
    scored,
    seeds_note,
    test_data,
    verdict,
)
from .scheduler import Runs
from .variants import HOUR, Sources, Variant

_LABELED_METRICS = (("bleu", "BLEU"), ("chrf", "chrF"), ("exact", "Exact match, %"))


STRETCHED = (
    Variant("sinusoidal-stretch", "sinusoidal, stretched"),
    Variant("rotary-stretch", "rotary, stretched"),
    Variant("rotary-flow-stretch", "rotary + flow, stretched"),
    Variant("rotary-flow-half", "rotary + flow, half stretched"),
    Variant("flow-stretch", "flow, stretched"),
    Variant("rotating-stretch", "rotating flow, stretched"),
    Variant("rotating-half", "rotating flow, half stretched"),
)
"""Rows whose times are stretched at random while training."""


class ShortToLong(TrainingItem):
    """BLEU by source length."""

    name = "s2l"
    title = "Short to long (Figure 3)"
    scores_only = True
    sources = Sources(
        "translation/s2l/{key}.yaml", "translation/wmt14/s2l/{key}.yaml", hurried=HOUR
    )
    variants: tuple[Variant, ...] = (
        Variant("sinusoidal", "sinusoidal"),
        Variant("learned", "learned table, clamped"),
        Variant("recurrent", "recurrent"),
        Variant("relative", "relative"),
        Variant("rotary", "rotary"),
        Variant("rotary-flow", "rotary + flow, q, k, v"),
        Variant("flow-blocks", "flow, all blocks"),
        Variant("flow-qkv-scratch", "flow, q, k, v"),
        *STRETCHED,
    )
    recommended: ClassVar[str] = "rotary-flow"
    """The variant that `docs/choose.md` recommends, which is compared with all others."""

    def reproduce(self, request: ReproductionRequest) -> Results:
        variants, runs = self.runs(request)
        note = f"{test_data(runs)}; the paper has a figure without numbers.{seeds_note(runs)}"
        tables = [
            length_table(variants, runs, metric, f"{label} by source length, tokens", note)
            for metric, label in _LABELED_METRICS
        ]
        tables.append(twice_table(variants, runs))
        if self.recommended in runs and len(runs) > 1:
            print_text(request.console, "comparing the variants in each bin …")
            tables.append(lead_table(self.recommended, variants, runs))
        figures = [
            by_length(variants, runs, metric, f"{label} by source length", label)
            for metric, label in _LABELED_METRICS
        ]
        return self.results(request, runs).model_copy(
            update={
                "tables": tables,
                "figures": figures,
                "summary": leaders(variants, runs, "bleu", "BLEU"),
            }
        )


class AnyLength(ShortToLong):
    """The same on the embedded corpus, which needs no files and trains within minutes."""

    name = "lengths"
    title = "Any length: lists of numbers, dates and times"
    trains = None
    recommended = "rotating-stretch"
    sources = Sources("translation/numbers/{key}.yaml", "translation/numbers/{key}.yaml")
    variants = tuple(
        variant
        for variant in ShortToLong.variants
        if variant.key not in ("flow-blocks", "rotary-flow-half", "rotating-half")
    )


def length_table(variants: list[Variant], runs: Runs, metric: str, title: str, note: str) -> Table:
    """A score in each bin of source length, with parameters and training time."""
    counts = length_bins(runs)
    headings = [f"{label} (n={count})" for label, count in counts.items()]
    rows: list[list[Cell]] = [
        [
            variant.name,
            *(scored(runs[variant.key], metric, label) for label in counts),
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
    """BLEU and exact match at the trained length and at twice that length."""
    labels = list(length_bins(runs))
    edges = [int(label.split("-")[0].removesuffix("+")) for label in labels]
    trained = edges[1]
    twice = max(number for number, edge in enumerate(edges) if edge <= 2 * trained)
    rows: list[list[Cell]] = []
    for variant in variants:
        near, far = (scored(runs[variant.key], "bleu", labels[number]) for number in (0, twice))
        rows.append(
            [
                variant.name,
                near,
                far,
                _percent(far, near),
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
            "retained, %",
            "exact, trained, %",
            "exact, twice, %",
        ],
        rows=rows,
    )


def _percent(value: Mean | None, base: Mean | None) -> float | None:
    if value is None or base is None or not base.mean:
        return None
    return 100 * value.mean / base.mean


def leaders(variants: list[Variant], runs: Runs, metric: str, name: str) -> list[str]:
    """A sentence about the best variant in each bin of source length."""
    return [
        f"{label} tokens ({count} sentences): {text}."
        for label, count in length_bins(runs).items()
        if (text := verdict(variants, runs, metric, name, label)) is not None
    ]
