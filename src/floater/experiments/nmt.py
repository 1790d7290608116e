"""Table 2 of the paper: translation with every encoder, at the input and at all blocks."""

from __future__ import annotations

from ..runs.results import Results, Table
from .arms import HOUR, Arm, Sources
from .base import Order, Training
from .scheduler import Runs
from .tables import against, fact, paper, scored, verdict

COLUMN = "BLEU"


class Translation(Training):
    """BLEU by encoder."""

    name = "nmt"
    title = "Translation by position encoder (Table 2)"
    sources = Sources(
        "translation/multi30k-{key}.yaml", "translation/wmt14/en-de-base-{key}.yaml", hurried=HOUR
    )
    arms = (
        Arm("sinusoidal", "sinusoidal, input", paper={COLUMN: 27.9}),
        Arm("sinusoidal-blocks", "sinusoidal, all blocks", paper={COLUMN: 28.2}),
        Arm("learned", "learned table, input", paper={COLUMN: 27.8}),
        Arm("learned-blocks", "learned table, all blocks", paper={COLUMN: 26.9}),
        Arm("flow", "flow, input", paper={COLUMN: 28.3}),
        Arm("flow-blocks", "flow, all blocks", paper={COLUMN: 28.6}),
        Arm("flow-qkv", "flow, q, k, v, warm-started", after="sinusoidal"),
        Arm("sinusoidal-more", "sinusoidal, trained on as long", after="sinusoidal"),
    )

    def reproduce(self, order: Order) -> Results:
        arms, runs = self.runs(order)
        rows = [
            [
                arm.name,
                scored(runs[arm.key], "bleu"),
                scored(runs[arm.key], "chrf"),
                scored(runs[arm.key], "exact"),
                fact(runs[arm.key], "position_parameters"),
                fact(runs[arm.key], "training_seconds"),
                _difference(runs, arm),
                paper(arm, COLUMN),
            ]
            for arm in arms
        ]
        first = runs[arms[0].key][0].scores()["test"]
        table = Table(
            title=self.title,
            note=(
                f"{first['data']['from']}; {first['pairs']} sentences, beam {first['beam']}; "
                f"{first['bleu']['signature']}. The paper's BLEU is of WMT14 en-de, tokenised, one "
                "run of Transformer-base: not comparable, shown for the order."
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
        line = f"On the test set: {verdict(arms, runs, 'bleu', 'BLEU')}."
        return self.results(order, runs).model_copy(update={"tables": [table], "summary": [line]})


def _difference(runs: Runs, arm: Arm) -> str | None:
    """The paired test against the control of an arm: the vanilla model, trained as long."""
    control = (
        "sinusoidal-more" if arm.after is not None and "sinusoidal-more" in runs else "sinusoidal"
    )
    if arm.key == control or control not in runs:
        return None
    return f"{control}: {against(runs[control][0], runs[arm.key][0])}"
