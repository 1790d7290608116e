"""The tables of docs/results.md match the records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import results
from floater.runs.results import Mean, Results, Table

ROOT = Path(__file__).parents[2]


def comparison(name: str, by: float, seeds: int) -> dict[str, Any]:
    values = {"base": [50.0] * seeds, "floater": [50.0 + by] * seeds}
    paired = {
        "base": 50.0,
        "other": 50.0 + by,
        "difference": by,
        "low": by - 1,
        "high": by + 1,
        "p_value": 0.5,
        "examples": 1234,
    }
    return {
        "name": name,
        "main": "accuracy",
        "more_is_better": True,
        "seeds": list(range(seeds)),
        "start": {"0": {"identical": True, "inputs": 8, "fresh_in_place_of_trained": False}},
        "arms": {"floater": {"valid": {"accuracy": {**paired, "seeds": values}}}},
    }


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "<!-- glue -->" in page
    assert results.filled(page, ROOT / "docs" / "records") == page


def test_tables_list_all_records_in_the_papers_order(tmp_path: Path) -> None:
    (tmp_path / "glue").mkdir()
    for name, by in (("rte", -2.0), ("cola", 3.0), ("sst2", 0.5)):
        (tmp_path / "glue" / f"{name}.json").write_text(
            json.dumps(comparison("small", by, 2)), encoding="utf-8"
        )
    page = results.filled("before\n<!-- glue -->\nformer\n<!-- /glue -->\nafter\n", tmp_path)
    assert page.startswith("before\n<!-- glue -->\n| config |")
    assert page.endswith("<!-- /glue -->\nafter\n")
    assert "former" not in page
    lines = [line for line in page.splitlines() if "| valid |" in line]
    assert [row.split(" | ")[0] for row in lines] == ["| cola", "| sst2", "| rte"]
    assert (
        "| 50.00 | 53.00 | +3.00 | +2.00 to +4.00 | 0.500 | 1,234 | 50.00, 50.00 | 53.00, 53.00 |"
        in lines[0]
    )
    assert (
        len(lines[0].split("|"))
        == len(page.splitlines()[2].split("|"))
        == len(page.splitlines()[3].split("|"))
    )
    words = " ".join(page.split())
    assert (
        "2 wins, 1 losses, 0 ties; by intervals that exclude 0: 1 wins, 1 losses, 1 open" in words
    )
    assert results.filled(page, tmp_path) == page


def test_a_single_seed_has_no_columns_by_seed(tmp_path: Path) -> None:
    (tmp_path / "race").mkdir()
    (tmp_path / "race" / "race.json").write_text(
        json.dumps(comparison("race", 1.0, 1)), encoding="utf-8"
    )
    assert "by seed" not in results.filled("<!-- race -->\n<!-- /race -->", tmp_path)


def test_a_table_without_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        results.filled("<!-- squad -->\n<!-- /squad -->", tmp_path)
    assert stopped.value.code == 2


def test_check_reports_an_outdated_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "records" / "race").mkdir(parents=True)
    (tmp_path / "docs" / "records" / "race" / "race.json").write_text(
        json.dumps(comparison("race", 1.0, 1)), encoding="utf-8"
    )
    page = tmp_path / "docs" / "results.md"
    page.write_text("<!-- race -->\n<!-- /race -->\n", encoding="utf-8")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    with pytest.raises(SystemExit) as stopped:
        results.main()
    assert stopped.value.code == 1
    assert "run python tools/results.py" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "<!-- race -->\n<!-- /race -->\n"
    drawn: list[Path] = []
    monkeypatch.setattr(results, "curves", lambda records: {"from": records})
    monkeypatch.setattr(results, "draw", lambda panels, path: drawn.extend((panels["from"], path)))
    monkeypatch.setattr(results, "overview", lambda records: [records])
    monkeypatch.setattr(
        results, "draw_overview", lambda panels, path: drawn.extend((*panels, path))
    )
    monkeypatch.setattr(sys, "argv", ["results.py"])
    results.main()
    records, figures = (tmp_path / "docs" / name for name in ("records", "figures"))
    assert drawn == [
        *(records / "mlm", figures / "masked-lm.png"),
        *(records, figures / "any-length.png"),
    ]
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    results.main()


def test_curves_begin_at_the_base_and_end_at_the_runs_own_scores(tmp_path: Path) -> None:
    records = ROOT / "docs" / "records" / "mlm"
    panels = results.curves(records)
    assert list(panels) == list(results.CURVES)
    for title, (base, *trained) in results.CURVES.items():
        for points, run in zip(panels[title].values(), trained, strict=True):
            scores = {
                name: json.loads((records / name / "scores.json").read_text(encoding="utf-8"))
                for name in (base, run)
            }
            assert points[0] == (0, scores[base]["valid"]["loss"]["score"])
            assert points[-1][1] == pytest.approx(scores[run]["valid"]["loss"]["score"], rel=1e-6)
    results.draw(panels, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_the_overview_shows_what_the_tables_say(tmp_path: Path) -> None:
    records = ROOT / "docs" / "records"
    panels = results.overview(records)
    assert [panel.title for panel in panels] == list(results.OVERVIEW)
    for panel, sources in zip(panels, results.OVERVIEW.values(), strict=True):
        rows = {
            (name, row[0]): row[1:]
            for name in sources
            for row in Results.read(records / name).tables[0].rows
        }
        wanted = [(name, line) for name, lines in sources.items() for line in lines]
        for place, series in zip(wanted, panel.series, strict=True):
            assert series.name == place[1]
            for drawn, cell in zip(series.y, rows[place], strict=False):
                written = cell.mean if isinstance(cell, Mean) else cell
                assert drawn == pytest.approx(written, abs=0.01)
    results.draw_overview(panels, tmp_path / "overview.png")
    assert (tmp_path / "overview.png").read_bytes()[:4] == b"\x89PNG"


def test_tables_of_a_reproduction(tmp_path: Path) -> None:
    table = Table(
        title="Series",
        note="Some stays.",
        columns=["positions", "auroc", "parameters"],
        rows=[["flow", Mean(mean=81.571, deviation=2.5, seeds=5, digits=1), 8384]],
    )
    found = Results(
        item="series", scale="small", title="Series", tables=[table], summary=["Best: flow."]
    )
    found.write(tmp_path / "series")
    page = results.filled("<!-- series -->\n<!-- /series -->\n", tmp_path)
    assert "Series. Some stays.\n\n| positions | auroc | parameters |\n" in page
    assert "| flow | 81.6 ± 2.5 | 8,384 |\n\nBest: flow.\n<!-- /series -->" in page
