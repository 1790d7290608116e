"""What the report shows of a real comparison: every test is shown."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
import yaml

from command_line import said
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder

from .worlds import glue


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stsb", "rte"])
def test_every_paired_test_and_the_comparison_are_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line, in folders whose names look like markup."""
    out = tmp_path / "[/red] [b]"
    config = tmp_path / f"{name}.yaml"
    compare = {"seeds": [0], "draws": 50}
    config.write_text(
        yaml.safe_dump(glue(tmp_path / "world", name, compare=compare)), encoding="utf-8"
    )
    said(monkeypatch, capsys, "compare", config, "--out", out)
    folders = out / name / "base-0", out / name / "floater-0"
    said(monkeypatch, capsys, "evaluate", folders[1], "--against", folders[0])
    tests = RunFolder(folders[1]).scores().paired
    assert {(test.test_set, test.against) for test in tests} == {("valid", "base-0")}
    rows = Comparison.from_file(out / name / COMPARISON).rows
    assert {(row.variant, row.test_set) for row in rows} == {("floater", "valid")}
    measures = {"pearson", "spearman"} if name == "stsb" else {"accuracy"}
    assert {test.measure for test in tests} == {row.measure for row in rows} == measures
    page = tmp_path / "page.html"
    assert f"wrote {page} (2 runs" in said(monkeypatch, capsys, "report", out, "--out", page)
    text = html.unescape(page.read_text(encoding="utf-8"))
    for test in (*tests, *rows):
        assert test.measure in text
        assert f"{test.difference:+.2f}</td>" in text
        assert f"{test.low:+.2f} to {test.high:+.2f}</td>" in text
    assert "Paired bootstrap tests" in text
    assert f"{name}: variants against base, medians over seeds" in text
