"""`floater extend`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import floater
from command_line import mistake, said
from understanding.worlds import causal, write_causal_model, write_model

FILES = ["--length", 4096, "--text", "a.txt", "--valid", "b.txt"]


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
    settings += ["--scaling", "none"]
    output = said(monkeypatch, capsys, *command, *files, *settings)
    assert "held-out loss by position" in output
    assert "are identical to the bit" in capsys.readouterr().out + output
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
    fixed = ["extend", model, "--length", 2 * limit, "--out", out, "--scaling", "yarn"]
    assert "holds a model already" in mistake(monkeypatch, capsys, *fixed)
    fixed = ["extend", out, "--length", 4 * limit, "--out", tmp_path / "b", "--scaling", "yarn"]
    assert "give the model that it was made from" in mistake(monkeypatch, capsys, *fixed)


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
        (["--length", 4096, "--scaling", "none"], "must be given with `--scaling none`"),
        (["--length", 4096, "--scaling", "cubic"], "`--scaling` must be one of none, linear,"),
        (["--length", 4096, "--text", "a.txt"], "`--text` and `--valid` go together"),
        (["--length", 4096, "--scaling", "yarn", "--set", "seed=1"], "are for training, but no"),
        ([*FILES, "--set", "compare.seeds=[0,1]"], "must be one seed"),
        ([*FILES, "--set", "model.name=other"], "model.name must be"),
        ([*FILES, "--set", "positions.encoder.learned=false"], "must be learned phases"),
        ([*FILES, "--set", "max_length=5000"], "must be at most --length"),
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
