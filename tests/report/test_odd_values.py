"""Odd or damaged values give a page, or one line that names the file; never a traceback."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from floater.errors import FloaterError
from floater.report.load import gather
from floater.report.page import write_report

from .folders import (
    circle,
    make_reproduction,
    make_run,
    sample,
    scored,
    typed_comparison,
    typed_scores,
)

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        10**400,
        -(10**25),
        1e308,
        float("nan"),
        float("inf"),
        "",
        "[/red]",
        "\ud800",
        "a\x00\x1b[31m\nb",
    ),
    *(
        [],
        [[]],
        {},
        [None, {"score": []}],
        {"score": float("nan")},
        {"score": 10**400, "interval": "x"},
        {"": {"": {}}},
    ),
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value inside a value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield (*path, key)
        yield from paths_in(item, (*path, key))


def spoiled(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return changed


def report(folders: list[Path], out: Path) -> str:
    """The outcome of a report: "page", or the line of its error. Anything else fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            write_report(folders, out)
    except FloaterError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert not out.exists()
        return str(error)
    assert "\x00" not in out.read_text(encoding="utf-8")
    out.unlink()
    return "page"


PAIRED = {"difference": 1.0, "low": 0.5, "high": 1.5, "p_value": 0.01, "signature": "s"}
FIRST_SCORES = {
    "test": scored(35.0, bins={"0-9": {"pairs": 3, "bleu": {"score": 1.0, "interval": 0.5}}}),
    "test against b": PAIRED,
    "valid against b": {"f1": PAIRED},
}
FIRST_COMPARISON = {
    "arms": {
        "floater": {
            "valid": {
                "f1": {**PAIRED, "base": 1.0, "other": 2.0, "examples": 7, "seeds": {"base": [1.0]}}
            }
        }
    }
}
DAMAGED = (
    b"",
    b"\xff\xfe\x00",
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"{",
    b"9" * 9999,
)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "name", ["run.json", "scores.json", "metrics.jsonl", "results.json", "comparison.json"]
)
def test_any_value_may_be_odd(tmp_path: Path, name: str, version: int) -> None:
    folder, out = tmp_path / "all", tmp_path / "page.html"
    scores = FIRST_SCORES if version == 1 else typed_scores("b").model_dump(mode="json")
    compared = FIRST_COMPARISON if version == 1 else typed_comparison().model_dump(mode="json")
    run = make_run(folder / "a", scores)
    make_run(folder / "b")
    make_reproduction(folder / "c", ["../a"])
    (folder / "d").mkdir()
    (folder / "d" / "comparison.json").write_text(json.dumps(compared))
    holders = {"results.json": folder / "c", "comparison.json": folder / "d"}
    path = holders.get(name, run) / name
    text = path.read_text(encoding="utf-8")
    lines = name == "metrics.jsonl"
    values = [json.loads(line) for line in text.splitlines()[:8]] if lines else json.loads(text)
    outcomes = []
    cases = [(keys, odd) for keys in paths_in(values) for odd in ODD]
    for keys, odd in random.Random(0).sample(cases, min(len(cases), 120)):
        changed = spoiled(values, keys, odd)
        rows = changed if lines else [changed]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        outcomes.append(report([folder], out))
    for odd in ODD:
        path.write_text(json.dumps(odd), encoding="utf-8")
        outcomes.append(report([folder], out))
    for content in DAMAGED:
        path.write_bytes(content)
        outcomes.append(report([folder], out))
    assert all(end == "page" or str(path) in end for end in outcomes), "an error names the file"
    assert len(set(outcomes)) > 1, "some values are refused, others do no harm"
    path.write_text(text, encoding="utf-8")
    assert report([folder], out) == "page"


@pytest.mark.parametrize("run", ["", "\ud800", "a\x00b", "[/red]", "x" * 5000, "../" * 500])
def test_a_reproduction_may_name_odd_runs(tmp_path: Path, run: str) -> None:
    folder = make_reproduction(tmp_path / "c", [])
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    (folder / "results.json").write_text(json.dumps({**results, "runs": [run]}), encoding="utf-8")
    assert report([folder], tmp_path / "page.html") == "page"
    assert "but there is none" in gather([folder]).notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("1: 2", "keys must be text, but one is 1"),
        ("a: &a [*a]", "must not contain itself"),
        ("a: 2024-01-01", "page"),
        ("training: 3\npositions: [x]", "page"),
        ('a: "\\ud800"', "must be text that can be written"),
        ("", "must hold keys with values, but holds nothing"),
        ("[" * 9999, "must be nested at most 40 deep"),
        ("positions: {encoder: 7}", "page"),
    ],
)
def test_any_config_may_be_odd(tmp_path: Path, text: str, end: str) -> None:
    run = make_run(tmp_path / "a")
    (run / "config.yaml").write_text(text, encoding="utf-8")
    outcome = report([run], tmp_path / "page.html")
    assert end in outcome
    assert outcome == "page" or str(run / "config.yaml") in outcome


SHAPE = "must hold finite times and encodings"


@pytest.mark.parametrize(
    ("times", "tables", "about", "end"),
    [
        (np.zeros((4, 2)), np.zeros((1, 4, 3)), {}, SHAPE),
        (np.full(4, np.nan), np.zeros((1, 4, 3)), {}, SHAPE),
        (np.arange(4.0), np.full((1, 4, 3), np.inf), {}, SHAPE),
        (np.arange(4.0), np.full((1, 4, 3), 3e38), {}, "page"),
        (
            np.arange(4.0),
            np.zeros((1, 4, 3)),
            {"trained": -3},
            "`trained` must be a length, but is -3",
        ),
        (np.arange(4.0), np.zeros((1, 4, 3)), {"trained": 10**30}, "`trained` must be a length"),
        (np.arange(4.0), np.zeros((1, 4, 3)), {"trained": float("inf")}, "is damaged"),
        (np.arange(4.0), np.zeros((1, 4, 3)), {"trained": "x"}, "is damaged"),
        (np.arange(4.0), np.zeros((1, 4, 3)), {"sites": 7}, "is damaged"),
        (np.arange(4.0), np.zeros((1, 4, 3)), {"sites": ["a", "b"]}, SHAPE),
        (
            np.arange(4.0),
            np.zeros((1, 4, 3)),
            {"sites": ["<script>\x00"], "kind": None, "description": []},
            "page",
        ),
        (np.arange(4), np.zeros((1, 4, 3), np.int64), {}, "page"),
        (np.zeros(0), np.zeros((1, 0, 3)), {}, SHAPE),
    ],
)
def test_any_table_may_be_odd(
    tmp_path: Path, times: Any, tables: Any, about: dict[str, Any], end: str
) -> None:
    run = make_run(tmp_path / "a", encodings=circle())
    metadata = {"sites": ["input"], "kind": "flow", "description": "flow", "trained": 2, **about}
    arrays = {
        "times": times,
        "tables": tables.astype(np.float32) if tables.dtype == np.float64 else tables,
    }
    save_file(arrays, run / "positions.safetensors", {"positions": json.dumps(metadata)})
    assert end in report([run], tmp_path / "page.html")
    (run / "positions.safetensors").write_bytes(b"\xff" * 40)
    assert "positions.safetensors is damaged" in report([run], tmp_path / "page.html")


def test_paired_tests_of_every_measure_and_comparisons_are_shown(tmp_path: Path) -> None:
    paired = {"difference": 1.25, "low": 0.5, "high": 1.5, "p_value": 0.01, "signature": "of f1"}
    other = {
        "difference": -2.75,
        "low": -3.5,
        "high": -1.5,
        "p_value": 0.02,
        "signature": "of exact",
    }
    measured = {
        "f1": {"score": 50.0, "interval": 9.0},
        "exact": {"score": 40.0, "interval": 9.0},
        "data": 1,
    }
    make_run(
        tmp_path / "floater-0",
        {"valid": measured, "valid against base-0": {"f1": paired, "exact": other}},
    )
    make_run(tmp_path / "base-0", {"valid": {**measured, "f1": {"score": 48.75, "interval": 9.0}}})
    row = {**paired, "base": 48.75, "other": 50.0, "examples": 1234}
    (tmp_path / "comparison.json").write_text(
        json.dumps({"arms": {"floater": {"valid": {"f1": row}}}})
    )
    page = tmp_path / "page.html"
    shown = write_report([tmp_path], page)
    text = page.read_text(encoding="utf-8")
    assert len(shown.runs) == 2
    for expected in (
        "of f1",
        "of exact",
        "+1.25",
        "-2.75",
        "-3.50 to -1.50",
        ">1,234<",
        "Comparisons",
    ):
        assert expected in text
    assert (
        "floater-0 is better than base-0 by a paired test: +1.25 f1 (95 % +0.50 to +1.50, p = "
        "0.010)" in text
    )


def test_less_loss_is_better(tmp_path: Path) -> None:
    paired = {"difference": -0.25, "low": -0.35, "high": -0.15, "p_value": 0.001, "signature": "s"}
    make_run(
        tmp_path / "a",
        {"valid": {"loss": {"score": 2.0}, "data": 1}, "valid against b": {"loss": paired}},
    )
    make_run(tmp_path / "b", {"valid": {"loss": {"score": 2.25}, "data": 1}})
    write_report([tmp_path], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a reaches 2.00 loss" in text
    assert "a is better than b by a paired test: -0.2500 loss" in text


def test_the_sample_still_has_its_paired_test(tmp_path: Path) -> None:
    write_report(sample(tmp_path), tmp_path / "page.html")
    assert "+1.20 BLEU" in (tmp_path / "page.html").read_text(encoding="utf-8")
