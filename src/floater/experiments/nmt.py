"""Table 2 of the paper: translation with every encoder, at the input and at all blocks."""

from __future__ import annotations

from ..printing import print_text
from ..runs.results import Results, Table
from .base import ReproductionRequest, TrainingItem
from .result_tables import against, fact, lead_table, scored, seeds_note, verdict
from .scheduler import Runs
from .variants import HOUR, Sources, Variant

_AGAINST = " “BLEU against” compares the runs of the first seed."


class TranslationTable(TrainingItem):
    """BLEU by encoder."""

    name = "nmt"
    title = "Translation by position encoder (Table 2)"
    scores_only = True
    sources = Sources(
        "translation/multi30k-{key}.yaml", "translation/wmt14/en-de-base-{key}.yaml", hurried=HOUR
    )
    variants = (
        Variant("sinusoidal", "sinusoidal, input", paper={"BLEU": 27.9}),
        Variant("sinusoidal-blocks", "sinusoidal, all blocks", paper={"BLEU": 28.2}),
        Variant("learned", "learned table, input", paper={"BLEU": 27.8}),
        Variant("learned-blocks", "learned table, all blocks", paper={"BLEU": 26.9}),
        Variant("flow", "flow, input", paper={"BLEU": 28.3}),
        Variant("flow-blocks", "flow, all blocks", paper={"BLEU": 28.6}),
        Variant("relative", "relative"),
        Variant("rotary", "rotary"),
        Variant("rotary-flow", "rotary + flow, q, k, v"),
        Variant("flow-qkv", "flow, q, k, v, warm-started", after="sinusoidal"),
        Variant("sinusoidal-more", "sinusoidal, trained longer", after="sinusoidal"),
    )

    recommended = "rotary-flow"
    """The variant that is compared with all others, over lines and seeds."""

    def reproduce(self, request: ReproductionRequest) -> Results:
        variants, runs = self.runs(request)
        rows = [
            [
                variant.name,
                scored(runs[variant.key], "bleu"),
                scored(runs[variant.key], "chrf"),
                scored(runs[variant.key], "exact"),
                fact(runs[variant.key], "position_parameters"),
                fact(runs[variant.key], "training_seconds"),
                _compare_with_control(runs, variant),
                variant.published("BLEU"),
            ]
            for variant in variants
        ]
        first = runs[variants[0].key][0].scores().sets["test"]
        table = Table(
            title=self.title,
            note=(
                f"{first.data['from']}; {first.examples} sentences, beam {first.settings['beam']}; "
                f"{first.scores['bleu'].signature}. The paper's BLEU is tokenised, of one "
                "Transformer-base on WMT14 en-de: not comparable, shown for the ranking."
                f"{seeds_note(runs)}{_AGAINST if seeds_note(runs) else ''}"
            ),
            columns=[
                "encoder",
                "BLEU",
                "chrF",
                "exact match, %",
                "position parameters",
                "training, s",
                "BLEU against",
                "paper, BLEU",
            ],
            rows=rows,
        )
        tables = [table]
        if self.recommended in runs and len(runs) > 1:
            print_text(request.console, "comparing the variants …")
            tables.append(lead_table(self.recommended, variants, runs, whole=True))
        line = f"On the test set: {verdict(variants, runs, 'bleu', 'BLEU')}."
        return self.results(request, runs).model_copy(update={"tables": tables, "summary": [line]})


def _compare_with_control(runs: Runs, variant: Variant) -> str | None:
    """The paired test against the sinusoidal model that was trained for as many updates."""
    longer = variant.after is not None and "sinusoidal-more" in runs
    control = "sinusoidal-more" if longer else "sinusoidal"
    if variant.key == control or control not in runs:
        return None
    return f"{control}: {against(runs[control][0], runs[variant.key][0])}"
