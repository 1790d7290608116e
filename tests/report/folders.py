"""Run folders and reproductions written by hand, without training.

`typed_scores` and `typed_comparison` are of the present version; the scores of the others have
the layout of version 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from floater.runs.comparison import Comparison, StartCheck, VariantScore
from floater.runs.encodings import Encodings
from floater.runs.results import Figure, Mean, Paper, Results, Series, Table
from floater.runs.scores import BinScores, PairedScore, Score, Scores, SetScores

DATA = {"from": "a.en | a.de", "pairs": 1000, "source_sha256": "1", "target_sha256": "2"}


def score(
    value: float, interval: float | None = 1.5, signature: str = "tok:13a|bs:1000"
) -> dict[str, Any]:
    return {"score": value, "interval": interval, "signature": signature}


def scored(value: float, interval: float | None = 1.5, **more: Any) -> dict[str, Any]:
    return {
        "bleu": score(value, interval),
        "pairs": 1000,
        "beam": 4,
        "seconds": 16.8,
        "data": DATA,
        **more,
    }


def circle(
    sites: int = 2, length: int = 24, dim: int = 6, trained: int | None = 12, kind: str = "flow"
) -> Encodings:
    """Sines of the time, faster at later sites and in later dimensions."""
    times = np.arange(length) * 0.1
    phase = (
        times[None, :, None]
        * (1 + np.arange(dim)[None, None, :])
        * (1 + np.arange(sites)[:, None, None])
    )
    names = tuple(f"encoder block {i + 1}" for i in range(sites))
    return Encodings(
        times, np.sin(phase).astype(np.float32), names, kind, f"{kind} at blocks", trained
    )


def make_run(
    path: Path,
    scores: dict[str, Any] | None = None,
    *,
    encodings: Encodings | None = None,
    encoder: dict[str, Any] | None = None,
    updates: int = 200,
    shift: float = 0.0,
) -> Path:
    path.mkdir(parents=True)
    settings = {
        "task": "translation",
        "positions": {"encoder": encoder, "sites": {"kind": "blocks"}},
        "training": {"updates": 200},
        "seed": 0,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    facts = {
        "commands": ["floater train a.yaml"],
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": {"cores": 2},
        "threads": 1,
        "positions": "flow blocks",
        "parameters": 1000,
        "position_parameters": 50,
        "updates": updates,
        "training_seconds": 3900.0,
        "data": {"test": DATA},
    }
    (path / "run.json").write_text(json.dumps(facts))
    rows: list[dict[str, Any]] = []
    for step in range(10, 201, 10):
        rows.append(
            {
                "step": step,
                "time": 0.0,
                "loss": 8 - step / 40 + shift,
                "tokens_per_second": 5000.0,
                "learning_rate": 1e-3,
            }
        )
        if step % 50 == 0:
            rows.append(
                {
                    "step": step,
                    "eval_loss": 6 - step / 50 + shift,
                    "eval_bleu": step / 10 + shift,
                    "eval_seconds": 1.0,
                }
            )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "scores.json").write_text(
        json.dumps({"test": scored(35.0)} if scores is None else scores)
    )
    if encodings is not None:
        encodings.write(path)
    return path


def make_reproduction(path: Path, runs: list[str]) -> Path:
    Results(
        item="s2l",
        scale="smoke",
        title="Short to long",
        summary=["Flow holds at twice the length."],
        tables=[
            Table(
                title="BLEU by length",
                note="Three seeds.",
                columns=["encoder", "0-48", "49-96", "paper"],
                rows=[
                    ["flow", Mean(mean=27.31, deviation=0.21, seeds=3), 26.1, Paper(paper=28.6)],
                    ["learned", 27.2, None, None],
                ],
            )
        ],
        figures=[
            Figure(
                title="By length",
                x_label="tokens",
                y_label="BLEU",
                x=["0-48", "49-96"],
                series=[
                    Series(name="flow", y=[27.3, 26.1], low=[27.0, 25.0], high=[27.6, 27.2]),
                    Series(name="learned", y=[27.2, None]),
                ],
            )
        ],
        runs=runs,
    ).write(path)
    return path


def sample(folder: Path) -> list[Path]:
    """Three runs (one rotary, without a table) with bins and a paired test, and a reproduction that
    names one of them.
    """
    bins = {
        "0-19": {"pairs": 700, "bleu": score(36.0)},
        "20-39": {"pairs": 300, "bleu": score(33.0, 2.5)},
        "40-": {"pairs": 0},
    }
    paired = {
        "base": 34.0,
        "other": 35.2,
        "difference": 1.2,
        "low": 0.4,
        "high": 2.0,
        "p_value": 0.004,
        "signature": "bs:1000",
    }
    flow = make_run(
        folder / "runs" / "flow",
        {"test": scored(35.2, bins=bins), "test against own": paired},
        encodings=circle(),
        encoder={"kind": "flow"},
    )
    own = make_run(
        folder / "runs" / "own",
        {"test": scored(34.0, bins=bins)},
        encodings=circle(1, 30, kind="own", trained=None),
        shift=-0.5,
    )
    rotary = make_run(
        folder / "runs" / "rotary", {"test": scored(33.0)}, encoder={"kind": "rotary"}, shift=-1.0
    )
    return [flow, own, rotary, make_reproduction(folder / "s2l-smoke", ["../runs/flow"])]


def typed_scores(against: str) -> Scores:
    """Scores with bins, and paired tests by two measures, as a run writes them now."""
    measures = {
        "bleu": Score(score=35.25, interval=1.5, signature="tok:13a|bs:1000"),
        "chrf": Score(score=61.5, interval=0.75, signature="nc:6|bs:1000"),
    }
    bins = {
        "0-19": BinScores(examples=700, scores={"bleu": Score(score=36.0, interval=1.5)}),
        "20-39": BinScores(examples=300, scores={"bleu": Score(score=33.0, interval=2.5)}),
        "40-": BinScores(),
    }
    test = SetScores(
        scores=measures,
        examples=1000,
        seconds=16.8,
        data=DATA,
        settings={"beam": 4, "length_penalty": 0.6},
        bins=bins,
        files={"test.txt": "0" * 64},
    )

    def paired(measure: str, difference: float) -> PairedScore:
        return PairedScore(
            test_set="test",
            against=against,
            measure=measure,
            base=30.0,
            other=30.0 + difference,
            difference=difference,
            low=difference - 0.25,
            high=difference + 0.25,
            p_value=0.004,
            signature=f"{measure}|bs:1000",
        )

    return Scores(sets={"test": test}, paired=[paired("bleu", 1.25), paired("chrf", -2.5)])


def typed_comparison() -> Comparison:
    """A comparison of two variants with a base, as `floater compare` writes it now."""

    def row(variant: str, measure: str, difference: float) -> VariantScore:
        return VariantScore(
            variant=variant,
            test_set="valid",
            against="base",
            measure=measure,
            base=48.75,
            other=48.75 + difference,
            difference=difference,
            low=difference - 0.5,
            high=difference + 0.5,
            p_value=0.03,
            examples=1234,
            seeds={"base": [48.75], variant: [48.75 + difference]},
        )

    return Comparison(
        task="squad",
        name="squad",
        model="roberta-base",
        main="f1",
        seeds=[0],
        start={"0": StartCheck(identical=True, inputs=20, fresh_in_place_of_trained=False)},
        training_seconds={"base": [1.5], "floater": [1.25], "learned": [None]},
        rows=[row("floater", "f1", 1.75), row("floater", "exact", -3.5), row("learned", "f1", 0.5)],
    )
