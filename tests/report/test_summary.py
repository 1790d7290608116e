"""The summary claims only what a paired test or the intervals support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floater.report.load import gather
from floater.report.summary import sentences

from .folders import DATA, make_run, score, scored


def summary(folder: Path, **runs: dict[str, Any]) -> str:
    return " ".join(
        sentences(gather([make_run(folder / name, scores) for name, scores in runs.items()]).runs)
    )


def paired(difference: float, low: float, high: float, p: float) -> dict[str, Any]:
    return {
        "difference": difference,
        "low": low,
        "high": high,
        "p_value": p,
        "signature": "bs:1000",
    }


def test_one_run(tmp_path: Path) -> None:
    text = summary(tmp_path, flow={"test": scored(35.19)})
    assert "On test (1,000 sentences), flow reaches 35.19 ± 1.50 BLEU." in text
    assert "Parameters of the position encoding: flow 50 (5.0 %)." in text


def test_a_paired_test_that_finds_a_difference(tmp_path: Path) -> None:
    text = summary(
        tmp_path,
        flow={"test": scored(35.2), "test against own": paired(1.2, 0.4, 2.0, 0.004)},
        own={"test": scored(34.0)},
    )
    assert "flow reaches 35.20 ± 1.50 BLEU and own 34.00 ± 1.50." in text
    assert (
        "flow is better than own by a paired test: +1.20 BLEU (95 % +0.40 to +2.00, p = 0.004)."
        in text
    )
    assert "overlap" not in text


def test_the_other_run_may_hold_the_test(tmp_path: Path) -> None:
    text = summary(
        tmp_path,
        flow={"test": scored(35.2)},
        own={"test": scored(34.0), "test against flow": paired(-1.2, -2.0, -0.4, 0.004)},
    )
    assert "flow is better than own by a paired test: +1.20 BLEU (95 % +0.40 to +2.00" in text


@pytest.mark.parametrize(("low", "p"), [(-0.3, 0.004), (0.1, 0.06)])
def test_a_paired_test_that_finds_none(low: float, p: float, tmp_path: Path) -> None:
    text = summary(
        tmp_path,
        flow={"test": scored(35.2), "test against own": paired(0.3, low, 0.9, p)},
        own={"test": scored(34.9)},
    )
    assert "A paired test does not distinguish flow from own" in text
    assert "better" not in text


def test_overlapping_intervals_show_no_difference(tmp_path: Path) -> None:
    text = summary(
        tmp_path,
        flow={"test": scored(35.2)},
        own={"test": scored(34.9)},
        other={"test": scored(34.0)},
    )
    assert "flow is above own by 0.30 and other by 1.20, but their 95 % intervals overlap" in text
    assert "without a paired test (floater evaluate RUN --against OTHER) this does not show" in text


def test_intervals_that_do_not_overlap(tmp_path: Path) -> None:
    text = summary(tmp_path, flow={"test": scored(35.2)}, own={"test": scored(30.0)})
    assert "flow is above own by 5.20; their 95 % intervals do not overlap." in text


def test_without_intervals_nothing_is_claimed(tmp_path: Path) -> None:
    text = summary(tmp_path, flow={"test": scored(35.2, None)}, own={"test": scored(30.0, None)})
    assert "without intervals this does not show that it is better" in text


@pytest.mark.parametrize(
    "other",
    [{"data": {**DATA, "source_sha256": "3"}}, {"beam": 1}, {"bleu": score(34.0, 1.5, "tok:none")}],
)
def test_scores_that_were_measured_differently_are_not_compared(
    other: dict[str, Any], tmp_path: Path
) -> None:
    text = summary(tmp_path, flow={"test": scored(35.2)}, own={"test": {**scored(34.0), **other}})
    assert "flow and own were not scored on the same data in the same way" in text
    assert "above" not in text


def test_a_run_that_is_not_finished_is_mentioned(tmp_path: Path) -> None:
    runs = gather([make_run(tmp_path / name, updates=120) for name in ("a", "b")]).runs
    assert (
        "a and b have completed 120 of 200 updates: their scores may still change, unless "
        "training was stopped early on purpose." in sentences(runs)
    )


def test_nothing_scored(tmp_path: Path) -> None:
    assert "BLEU" not in summary(tmp_path, flow={})
