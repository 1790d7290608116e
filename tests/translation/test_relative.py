"""Relative positions from the command line: a minute's task, trained for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

import floater
from command_line import mistake, said
from floater.runs.folder import RunFolder
from floater.tasks.translation import evaluation

NUMBERS = Path(__file__).parents[2] / "configs" / "translation" / "numbers.yaml"


@pytest.mark.slow
def test_a_translator_with_relative_positions_learns_and_translates_what_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "positions": "{encoder: {kind: relative, distance: 4, init_std: 0.1}, sites: qkv}",
        "data.embedded.train.pairs": 500,
        "data.embedded.test": "{pairs: 12, longest: 6}",
        "model": "{preset: tiny, layers: 1, dim: 32, feed_forward: 64, heads: 2, dropout: 0.1}",
        "vocabulary.size": 400,
        "training.updates": 40,
        "training.warmup": 10,
        "training.batch_tokens": 512,
        "training.save_every": 20,
        "decoding.beam": 2,
    }
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    run = tmp_path / "run"
    said(monkeypatch, capsys, "train", NUMBERS, "--out", run, *options)
    folder = RunFolder(run)
    facts = folder.facts()
    # two self-attentions, tables of keys and of values, 9 distances, heads of size 16
    assert (facts["positions"], facts["position_parameters"]) == ("relative qkv", 2 * 2 * 9 * 16)
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert losses[-1] < 0.9 * losses[0]
    translator = evaluation.load(run)
    attached = floater.attachment(translator.model)
    assert attached is not None
    assert all(bool(parameter.any()) for parameter in attached.parameters())
    lines = [" ".join(["seven"] * count) for count in (3, 60)]
    alone = [translator.translate([line]) for line in lines]
    assert translator.translate(lines) == [text for (text,) in alone]
    assert "`relative` has vectors for distances" in mistake(monkeypatch, capsys, "plot", run)
    said(monkeypatch, capsys, "report", run, "--out", tmp_path / "report.html")
    assert "Relative positions have vectors for distances" in (tmp_path / "report.html").read_text()
