"""What the report shows of a real comparison: nothing that was tested is left out."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
import yaml

from command_line import said
from floater.runs.folder import RunFolder

from .worlds import glue


@pytest.mark.parametrize("name", ["stsb", "rte"])
def test_every_paired_test_and_the_comparison_are_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line, in folders whose names look like markup."""
    place = tmp_path / "[/red] [b]"
    config = tmp_path / f"{name}.yaml"
    compare = {"seeds": [0], "draws": 50}
    config.write_text(
        yaml.safe_dump(glue(tmp_path / "world", name, compare=compare)), encoding="utf-8"
    )
    said(monkeypatch, capsys, "compare", config, "--out", place)
    arms = place / name / "base-0", place / name / "floater-0"
    said(monkeypatch, capsys, "evaluate", arms[1], "--against", arms[0])
    tests = RunFolder(arms[1]).scores()["valid against base-0"]
    compared = json.loads((place / name / "comparison.json").read_text(encoding="utf-8"))["arms"][
        "floater"
    ]["valid"]
    assert (
        set(tests) == set(compared) == ({"pearson", "spearman"} if name == "stsb" else {"accuracy"})
    )
    page = tmp_path / "page.html"
    assert f"wrote {page} (2 runs" in said(monkeypatch, capsys, "report", place, "--out", page)
    text = html.unescape(page.read_text(encoding="utf-8"))
    for measure, found in (*tests.items(), *compared.items()):
        assert measure in text
        assert f"{found['difference']:+.2f}</td>" in text
        assert f"{found['low']:+.2f} to {found['high']:+.2f}</td>" in text
    assert "Paired bootstrap tests" in text
    assert f"{name}: variants against base, medians over seeds" in text
