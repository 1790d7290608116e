"""§4.4 of the paper: what each of its tricks saves, beside what an exact and cheap solve costs."""

from __future__ import annotations

from ..runs.results import Cell, Results, Table
from .base import Request, TrainingItem
from .result_tables import fact, mean, scored
from .scheduler import Runs
from .step_timing import Cost, step_costs
from .variants import Sources, Variant

CYCLE = 10
"""Updates over which the tricks do something once."""
_FLOW = {"kind": "flow", "zero_init": False, "initial_scale": 0.1}


def _flow(**changes: object) -> dict[str, object]:
    return {"positions": {"encoder": {**_FLOW, **changes}, "sites": "blocks"}}


class Efficiency(TrainingItem):
    """Time, memory and loss of an update with each trick on and off."""

    name = "efficiency"
    title = "What positions cost in training (§4.4)"
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
        Variant("flow-blocks", "flow: one adaptive solve an update (ours)"),
        Variant("kept", f"… solution kept for {CYCLE} updates", settings=_flow(keep_for=CYCLE)),
        Variant(
            "seldom",
            f"… h updated every {CYCLE} updates",
            settings={"training": {"update_every": CYCLE}},
        ),
        Variant(
            "tricks",
            f"… both, h learning {CYCLE} × faster",
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

    def reproduce(self, request: Request) -> Results:
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
        base = mean(values) if (values := _peaks(runs, "sinusoidal")) else None
        rows: list[list[Cell]] = []
        for variant in variants:
            peaks, cost = _peaks(runs, variant.key), costs[variant.key]
            rows.append(
                [
                    variant.name,
                    1e3 * cost.seconds,
                    100 * (cost.ratio - 1),
                    mean(peaks) if peaks else None,
                    mean(peaks).mean - base.mean if peaks and base else None,
                    mean(
                        [
                            _last_loss(runs, variant.key, number)
                            for number in range(len(request.seeds))
                        ]
                    ),
                    scored(runs[variant.key], "bleu"),
                    fact(runs[variant.key], "training_seconds"),
                ]
            )
        table = Table(
            title=self.title,
            note=(
                f"Updates timed in turn in one process: {rounds} turns of {CYCLE} updates each, "
                "medians. Memory: the most that a process held which did nothing but this run. "
                "Loss: mean of the last two that were logged. The paper reports 20 to 30 % more "
                "time with all its tricks."
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
            rows=rows,
        )
        return self.results(request, runs).model_copy(
            update={"tables": [table], "summary": _summary(costs)}
        )


def _peaks(runs: Runs, key: str) -> list[float]:
    found = [run.facts().get("peak_memory_mb") for run in runs.get(key, [])]
    return [value for value in found if value is not None]


def _last_loss(runs: Runs, key: str, number: int) -> float:
    losses = [row["loss"] for row in runs[key][number].metrics() if "loss" in row]
    return float(sum(losses[-2:]) / len(losses[-2:]))


def _summary(costs: dict[str, Cost]) -> list[str]:
    names = {
        "flow-blocks": "one adaptive solve an update",
        "rk4": "the paper's solver",
        "rk4-tricks": "the paper's solver with its tricks",
    }
    return [
        f"An update with {name} takes {100 * (costs[key].ratio - 1):+.0f} %."
        for key, name in names.items()
        if key in costs
    ]
