"""`floater extend`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import floater
from command_line import mistake, said
from understanding.worlds import causal, write_causal_model, write_model

LIMIT = 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_causal_model(tmp_path / "llama", "llama")
    return tmp_path / "llama"


def positions(path: Path) -> int:
    return int(AutoModelForCausalLM.from_pretrained(path).config.max_position_embeddings)


def test_clocks_are_trained_and_the_folder_works(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = causal(tmp_path, "llama")["data"]
    limit, out = positions(model), tmp_path / "long"
    command = ["extend", model, "--length", 2 * limit, "--out", out]
    files = ["--text", text["train"][0], "--valid", text["valid"][0]]
    settings = ["--updates", 3, "--set", "max_length=24", "--set", "training.threads=1"]
    output = said(monkeypatch, capsys, *command, *files, *settings)
    assert "held-out loss by position" in output
    assert f"inputs of up to {2 * limit:,} tokens, {limit:,} before" in output
    for name in ("base", "linear", "yarn", "learned"):
        assert name in output
    assert (out / "phases.png").stat().st_size > 10_000
    assert AutoTokenizer.from_pretrained(out).model_max_length == 2 * limit
    loaded = floater.from_pretrained(AutoModelForCausalLM, out)
    assert loaded.config.max_position_embeddings == 2 * limit
    attached = floater.attachment(loaded)
    assert attached is not None
    assert bool(attached.encoder.flow.dynamics.second.weight.any())  # type: ignore[union-attr, operator]
    loaded.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4, do_sample=False)
    again = said(monkeypatch, capsys, *command, *files, *settings, "--resume")
    assert "held-out loss by position" in again


def test_a_fixed_scaling_needs_no_text(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "long"
    length = 4 * positions(model)
    said(
        monkeypatch, capsys, "extend", model, "--length", length, "--scaling", "yarn", "--out", out
    )
    attached = floater.attachment(floater.from_pretrained(AutoModelForCausalLM, out))
    assert attached is not None
    assert attached.num_parameters() == 0
    assert attached.config.scaling == "yarn"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", 8, "--scaling", "yarn"], "must be larger than the"),
        (["--length", 4096], "`--text` (files to train on) or a fixed `--scaling` must be given"),
        (["--length", 4096, "--scaling", "cubic"], "`--scaling` must be one of none, linear,"),
        (["--length", 4096, "--text", "a.txt"], "`--text` and `--valid` go together"),
    ],
)
def test_mistakes_end_in_one_line(
    options: list[object],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "long"
    assert message in mistake(monkeypatch, capsys, "extend", model, "--out", out, *options)
    assert not out.exists()


def test_models_without_rotary_positions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "bert")
    out = tmp_path / "long"
    command = ["extend", tmp_path / "bert", "--length", 4096, "--out", out]
    assert "must have rotary positions" in mistake(monkeypatch, capsys, *command)
    assert not out.exists()
