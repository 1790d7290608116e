"""§4.4 of the paper: what its tricks save, and what one adaptive solve per update costs."""

from __future__ import annotations

from ..runs.folder import RunFolder
from ..runs.results import Cell, Mean, Results, Table
from .base import ReproductionRequest, TrainingItem
from .result_tables import fact, mean, scored
from .scheduler import Runs
from .step_timing import Cost, step_costs
from .variants import RANDOM_FLOW, Sources, Variant

CYCLE = 10
"""The tricks act once in this many updates."""


def _flow(**changes: object) -> dict[str, object]:
    return {"positions": {"encoder": {**RANDOM_FLOW, **changes}, "sites": "blocks"}}


class Efficiency(TrainingItem):
    """Time and memory of an update, and the loss, with each trick on and off."""

    name = "efficiency"
    title = "Training cost of position encodings (§4.4)"
    apart = True
    sources = Sources(
        "translation/multi30k-flow-blocks.yaml",
        "translation/wmt14/en-de-base-flow-blocks.yaml",
        "flow-blocks",
        {"training": {"updates": 800, "evaluate_every": 800}},
    )
    variants = (
        Variant(
            "sinusoidal", "sinusoidal", settings={"positions": {"encoder": None, "sites": "input"}}
        ),
        Variant("flow-blocks", "flow: one adaptive solve per update (ours)"),
        Variant("kept", f"… solution reused for {CYCLE} updates", settings=_flow(keep_for=CYCLE)),
        Variant(
            "seldom",
            f"… h updated every {CYCLE} updates",
            settings={"training": {"update_every": CYCLE}},
        ),
        Variant(
            "tricks",
            f"… both, learning rate of h × {CYCLE}",
            settings={
                **_flow(keep_for=CYCLE),
                "training": {"update_every": CYCLE, "flow_lr_multiple": float(CYCLE)},
            },
        ),
        Variant(
            "small-weights",
            "… small initial weights",
            settings=_flow(init_scale=0.01, initial_scale=0.01),
        ),
        Variant("frozen", "… h frozen", settings={"training": {"freeze_flow": True}}),
        Variant("rk4", "flow: RK4 in steps of Δ/5 (the paper)", settings=_flow(solver="rk4")),
        Variant(
            "rk4-tricks",
            "… with all tricks of the paper",
            settings={
                **_flow(solver="rk4", keep_for=CYCLE),
                "training": {"update_every": CYCLE, "flow_lr_multiple": float(CYCLE)},
            },
        ),
    )

    def reproduce(self, request: ReproductionRequest) -> Results:
        variants, runs = self.runs(request)
        rounds = 3 if request.scale == "smoke" else 10
        configs = dict(
            zip(
                (variant.key for variant in variants),
                self.configs(request.scale, request).values(),
                strict=True,
            )
        )
        costs = step_costs(
            configs, runs[variants[0].key][0], rounds=rounds, steps=CYCLE, console=request.console
        )
        table = Table(
            title=self.title,
            note=(
                f"Updates are timed in alternation in one process: medians of {rounds} rounds of "
                f"{CYCLE} updates each. Memory: peak of a process that ran nothing else. Loss: "
                "mean of the last two logged values. The paper reports 20 to 30 % more time with "
                "all its tricks."
            ),
            columns=[
                "positions",
                "update, ms",
                "overhead, %",
                "memory, MB",
                "more than sinusoidal, MB",
                "loss",
                "BLEU",
                "training, s",
            ],
            rows=[_row(variant, runs, costs[variant.key]) for variant in variants],
        )
        return self.results(request, runs).model_copy(
            update={"tables": [table], "summary": _summary(costs)}
        )


def _row(variant: Variant, runs: Runs, cost: Cost) -> list[Cell]:
    memory, base = _peak_memory(runs, variant.key), _peak_memory(runs, "sinusoidal")
    return [
        variant.name,
        1e3 * cost.seconds,
        100 * (cost.ratio - 1),
        memory,
        memory.mean - base.mean if memory and base else None,
        mean(_last_loss(run) for run in runs[variant.key]),
        scored(runs[variant.key], "bleu"),
        fact(runs[variant.key], "training_seconds"),
    ]


def _peak_memory(runs: Runs, key: str) -> Mean | None:
    recorded = [run.facts().get("peak_memory_mb") for run in runs.get(key, [])]
    peaks = [peak for peak in recorded if peak is not None]
    return mean(peaks) if peaks else None


def _last_loss(run: RunFolder) -> float:
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    return float(sum(losses[-2:]) / len(losses[-2:]))


def _summary(costs: dict[str, Cost]) -> list[str]:
    names = {
        "flow-blocks": "one adaptive solve per update",
        "rk4": "the paper's solver",
        "rk4-tricks": "the paper's solver with its tricks",
    }
    return [
        f"Time of an update with {name}: {100 * (costs[key].ratio - 1):+.0f} %."
        for key, name in names.items()
        if key in costs
    ]
