"""`results.json`, which reproductions write and the report reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floater.errors import ConfigError, RunError
from floater.report.markup import cell
from floater.runs.results import RESULTS, Figure, Mean, Paper, Results, Series, Table

RESULTS_V1: dict[str, Any] = {
    "item": "s2l",
    "scale": "smoke",
    "title": "Short to long",
    "summary": ["Flow holds."],
    "tables": [
        {
            "title": "BLEU",
            "note": "test",
            "columns": ["encoder", "here", "paper", "seeds", "words"],
            "rows": [
                ["flow", 27.5, {"paper": 28.6}, {"mean": 27.0, "deviation": 0.2, "seeds": 3}, None]
            ],
        }
    ],
    "figures": [
        {
            "kind": "lines",
            "title": "By length",
            "x_label": "tokens",
            "y_label": "BLEU",
            "x": ["0-48", "49-96"],
            "series": [
                {"name": "flow", "y": [27.1, None], "low": [26.0, None], "high": [28.0, None]}
            ],
        }
    ],
    "runs": ["runs/flow"],
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(json.dumps(RESULTS_V1))
    results = Results.read(tmp_path)
    assert results.tables[0].rows[0] == [
        "flow",
        27.5,
        Paper(paper=28.6),
        Mean(mean=27.0, deviation=0.2, seeds=3),
        None,
    ]
    assert results.figures[0].series[0] == Series(
        name="flow", y=[27.1, None], low=[26.0, None], high=[28.0, None]
    )
    assert results.run_folders(tmp_path) == [tmp_path / "runs" / "flow"]
    results.write(tmp_path / "again")
    again = json.loads((tmp_path / "again" / RESULTS).read_text())
    assert again["tables"][0]["rows"][0][3].pop("digits") == 2
    assert again == {"version": 2, "headline": [], **RESULTS_V1}


def test_a_mean_is_shown_with_its_decimals() -> None:
    value = Mean(mean=0.50731, deviation=0.01234, seeds=3, digits=4)
    assert cell(value).startswith("0.5073")
    assert "± 0.0123" in cell(value)
    assert "0.51<" in cell(value.model_copy(update={"digits": 2}))


def test_whole_numbers_and_texts_stay_what_they_are() -> None:
    table = Table(title="t", columns=["a", "b", "c"], rows=[["7", 7, 7.0]])
    assert [type(cell) for cell in table.rows[0]] == [str, int, float]


@pytest.mark.parametrize(
    "cell", [True, float("nan"), float("inf"), [1], {}, {"median": 1}, {"mean": 1.0, "spread": 2}]
)
def test_other_cells_are_refused(cell: Any) -> None:
    with pytest.raises(ConfigError, match=r"cell must be|has no key `spread`"):
        Table(title="t", columns=["a"], rows=[[cell]])


def test_a_table_is_rectangular() -> None:
    with pytest.raises(ConfigError, match=r"row 1 of 't' must have 2 cells, but has 1"):
        Table(title="t", columns=["a", "b"], rows=[["x", 1], ["y"]])


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (
            Series(name="s", y=[1.0]),
            r"`y` of 's' in 't' must have 2 values, one for each x, but has 1",
        ),
        (Series(name="s", y=[1.0, 2.0], low=[0.0, 1.0]), r"must have both `low` and `high`"),
    ],
)
def test_a_figure_fits_its_axis(series: Series, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Figure(title="t", x_label="x", y_label="y", x=["a", "b"], series=[series])


def test_a_point_is_finite() -> None:
    with pytest.raises(ConfigError, match=r"point must be a finite number or null, but is nan"):
        Series(name="s", y=[float("nan")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"results\.json is damaged"),
        ("[]", r"must hold an object, but holds list"),
        (
            json.dumps(RESULTS_V1 | {"sumary": []}),
            r"results\.json: Results has no key `sumary`; did you mean `summary`\?",
        ),
        (
            json.dumps(RESULTS_V1 | {"runs": ["/elsewhere"]}),
            r"relative to the folder of its reproduction, but is '/elsewhere'",
        ),
    ],
)
def test_a_damaged_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(text)
    with pytest.raises(RunError, match=message) as caught:
        Results.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"must be the folder of a reproduction \(with results\.json\), but is not"
    ):
        Results.read(tmp_path)
