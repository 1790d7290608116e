"""The summary claims what a test or an interval carries, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floater.report.load import gather
from floater.report.summary import sentences

from .folders import DATA, make_run, score, scored


def words(folder: Path, **runs: dict[str, Any]) -> str:
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
    found = words(tmp_path, flow={"test": scored(35.19)})
    assert "On test (1,000 sentences), flow reaches 35.19 ± 1.50 BLEU." in found
    assert "Parameters spent on positions: flow 50 (5.0 %)." in found


def test_a_paired_test_that_finds_a_difference(tmp_path: Path) -> None:
    found = words(
        tmp_path,
        flow={"test": scored(35.2), "test against own": paired(1.2, 0.4, 2.0, 0.004)},
        own={"test": scored(34.0)},
    )
    assert "flow reaches 35.20 ± 1.50 BLEU and own 34.00 ± 1.50." in found
    assert (
        "flow is better than own by a paired test: +1.20 BLEU (95 % +0.40 to +2.00, p = 0.004)."
        in found
    )
    assert "overlap" not in found


def test_the_test_may_stand_in_the_other_run(tmp_path: Path) -> None:
    found = words(
        tmp_path,
        flow={"test": scored(35.2)},
        own={"test": scored(34.0), "test against flow": paired(-1.2, -2.0, -0.4, 0.004)},
    )
    assert "flow is better than own by a paired test: +1.20 BLEU (95 % +0.40 to +2.00" in found


@pytest.mark.parametrize(("low", "p"), [(-0.3, 0.004), (0.1, 0.06)])
def test_a_paired_test_that_finds_none(low: float, p: float, tmp_path: Path) -> None:
    found = words(
        tmp_path,
        flow={"test": scored(35.2), "test against own": paired(0.3, low, 0.9, p)},
        own={"test": scored(34.9)},
    )
    assert "A paired test does not tell flow and own apart" in found
    assert "better" not in found


def test_overlapping_intervals_are_no_claim(tmp_path: Path) -> None:
    found = words(
        tmp_path,
        flow={"test": scored(35.2)},
        own={"test": scored(34.9)},
        other={"test": scored(34.0)},
    )
    assert "flow is above own by 0.30 and other by 1.20, but their 95 % intervals overlap" in found
    assert "no claim that it is better" in found


def test_intervals_that_do_not_overlap(tmp_path: Path) -> None:
    found = words(tmp_path, flow={"test": scored(35.2)}, own={"test": scored(30.0)})
    assert "flow is above own by 5.20; their 95 % intervals do not overlap." in found


def test_without_intervals_nothing_is_said(tmp_path: Path) -> None:
    found = words(tmp_path, flow={"test": scored(35.2, None)}, own={"test": scored(30.0, None)})
    assert "nothing can be said of what that means" in found


@pytest.mark.parametrize(
    "other",
    [{"data": {**DATA, "source_sha256": "3"}}, {"beam": 1}, {"bleu": score(34.0, 1.5, "tok:none")}],
)
def test_what_was_measured_otherwise_is_not_compared(other: dict[str, Any], tmp_path: Path) -> None:
    found = words(tmp_path, flow={"test": scored(35.2)}, own={"test": {**scored(34.0), **other}})
    assert "flow and own were not scored on the same data in the same way" in found
    assert "above" not in found


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    runs = gather([make_run(tmp_path / name, updates=120) for name in ("a", "b")]).runs
    assert (
        "a and b have made 120 of 200 updates: their numbers may still change, unless stopped on "
        "purpose." in sentences(runs)
    )


def test_nothing_scored(tmp_path: Path) -> None:
    assert "BLEU" not in words(tmp_path, flow={})
