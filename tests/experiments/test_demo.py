from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from floater import cli
from floater.errors import RunError
from floater.experiments import demo, pretrained
from floater.experiments.variants import embedded
from floater.recipes import merge
from floater.runs.results import Results


@pytest.mark.slow
def test_the_demo_says_what_it_does_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"train": {"pairs": 300}, "valid": {"pairs": 4}, "test": {"pairs": 12, "longest": 16}}
    small = {
        "data": {"embedded": few, "max_source_tokens": None},
        "vocabulary": {"size": 320},
        "model": {"dim": 16, "layers": 1},
    }
    monkeypatch.setattr(
        demo, "embedded", lambda key, **changes: merge(embedded(key, **changes), small)
    )
    arguments = [
        "demo",
        "--out",
        str(tmp_path),
        "--updates",
        "4",
        "--rounds",
        "1",
        "--workers",
        "1",
        "--seed",
        "3",
    ]
    monkeypatch.setattr(cli, "console", Console(width=80))
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())  # a narrow terminal breaks lines
    for word in (
        "tested on lists of up to 16",
        "rotating flow, stretched",
        "rotary",
        "cost",
        "Trained on fewer than 40 tokens and tested on",
        "FLOATER (flow)",
        "report.html",
    ):
        assert word in said
    if pretrained.find() is not None:
        assert "outputs are identical to the bit" in said
        assert "100 % if its table goes on to 1024 positions, untrained (by chance 33 %)" in said
        assert "Outputs on short texts are identical to the bit" in said
    results = Results.read(tmp_path)
    assert len(results.runs) == 6
    assert "rotating-stretch-seed3" in results.runs
    for name in ("encodings.png", "short-to-long.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Short to long on numbers, dates and times" in page
    assert results.headline[0] in page
    assert page.index(results.headline[0]) < page.index(results.summary[0])


def test_only_runs_of_a_demo_are_removed(tmp_path: Path) -> None:
    (tmp_path / "rotary-seed0").mkdir()
    with pytest.raises(
        RunError, match=r"must be the run of an earlier demo .* choose another --out"
    ):
        demo.demo(tmp_path, Console(quiet=True), updates=2, rounds=1, workers=1, again=True)


def test_without_the_pretrained_model_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find", lambda: None)
    assert "is not installed" in demo._attach_to_pretrained(1, Console(quiet=True))
    assert demo._read_past_limit() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--out", "file"], "`--out` must be a folder or a new name, but file is a file"),
        (
            ["reproduce", "s2l", "--out", "file/deeper"],
            "`--out` must be a folder or a new name, but file is a file",
        ),
        (
            ["reproduce", "s2l", "--variants", ","],
            "`--variants` must be names separated by commas, but is ','",
        ),
    ],
)
def test_places_and_variants_are_looked_at_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    monkeypatch.setattr("sys.argv", ["floater", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert Path("file").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_mistakes_on_the_command_line_end_with_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli.app, ["demo", "--updates", "0"])
    assert result.exit_code == 2
    monkeypatch.setattr("sys.argv", ["floater", "demo", "--workers", "0"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
