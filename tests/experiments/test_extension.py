"""`floater extend`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    T5Config,
)

import floater
from command_line import mistake, said
from floater.runs.folder import RunFolder
from understanding.worlds import causal, masked, write_causal_model, write_model

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


def test_all_weights_are_trained_with_the_clocks(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = causal(tmp_path, "llama")["data"]
    out = tmp_path / "long"
    command = ["extend", model, "--length", 2 * positions(model), "--out", out, "--train", "all"]
    command += ["--text", text["train"][0], "--valid", text["valid"][0], "--updates", 3]
    output = said(
        monkeypatch, capsys, *command, "--set", "max_length=24", "--set", "training.threads=1"
    )
    assert "learned" in output
    assert "trained" not in {line.split()[0] for line in output.splitlines() if line.split()}
    run = RunFolder(out / "training" / "floater-0")
    settings = run.settings()
    assert settings["skips"] == 1
    assert settings["positions"]["jitter"] is None
    assert settings["training"]["part"] == "all"
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    after = floater.from_pretrained(AutoModelForCausalLM, out).state_dict()
    assert all(not torch.equal(after[name], own) for name, own in before.items())


def test_a_fixed_scaling_needs_no_text(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "long"
    length = 4 * positions(model)
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    command = ["extend", model, "--length", length, "--scaling", "yarn", "--out", out]
    assert "must be a new or empty folder, but holds thesis.txt" in mistake(
        monkeypatch, capsys, *command
    )
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    (out / "thesis.txt").unlink()
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
        ([*FILES, "--set", "positions.encoder.learned=false"], "must be learned phases or"),
        ([*FILES, "--set", "max_length=5000"], "must be at most --length"),
        ([*FILES, "--set", "compare.only=[base, floater]"], "compare.only and leave_out must be"),
        ([*FILES, "--set", "training.keep_model=false"], "keep_model must be true"),
        ([*FILES, "--train", "some"], "`--train` must be one of positions, all, but is 'some'"),
        (["--length", 4096, "--train", "all"], "are for training, but no"),
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


def test_models_with_other_positions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    T5Config().save_pretrained(tmp_path / "t5")
    out = tmp_path / "long"
    command = ["extend", tmp_path / "t5", "--length", 4096, "--out", out]
    assert "must have rotary positions or a position table" in mistake(
        monkeypatch, capsys, *command
    )
    assert not out.exists()


def test_a_table_is_trained_and_becomes_part_of_a_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "bert", "bert with head")
    text, out = masked(tmp_path, "bert with head")["data"], tmp_path / "long"
    limit = AutoConfig.from_pretrained(tmp_path / "bert").max_position_embeddings
    command = ["extend", tmp_path / "bert", "--length", 2 * limit, "--out", out]
    command += ["--text", text["train"][0], "--valid", text["valid"][0], "--updates", 3]
    output = said(monkeypatch, capsys, *command, "--set", "training.threads=1")
    assert "largest |p|" in output
    for name in ("cycle", "group", "hierarchy", "linear", "waves", "learned"):
        assert name in output
    assert (out / "table.png").stat().st_size > 10_000
    assert not (out / "floater_config.json").exists()
    plain = AutoModelForMaskedLM.from_pretrained(out)
    assert plain.config.max_position_embeddings == 2 * limit
    trained = floater.from_pretrained(
        AutoModelForMaskedLM, out / "training" / "floater-0" / "model"
    )
    ids = torch.randint(5, 20, (1, 3 * limit // 2))
    with torch.no_grad():
        found, expected = (model.eval()(input_ids=ids).logits for model in (plain, trained))
    assert torch.equal(found, expected)
    assert AutoTokenizer.from_pretrained(out).model_max_length == 2 * limit


@pytest.mark.parametrize("scaling", ["waves", "cycle"])
def test_a_table_of_a_model_without_a_head_needs_no_text(
    scaling: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_model(tmp_path / "roberta")
    out, before = tmp_path / "long", AutoModel.from_pretrained(tmp_path / "roberta").eval()
    command = ["extend", tmp_path / "roberta", "--length", 200, "--out", out]
    said(monkeypatch, capsys, *command, "--scaling", scaling)
    after = AutoModel.from_pretrained(out).eval()
    ids = torch.randint(5, 20, (2, 200))
    with torch.no_grad():
        assert after(input_ids=ids)[0].shape[1] == 200
        short = ids[:, :64]
        assert torch.equal(after(input_ids=short)[0], before(input_ids=short)[0])


def test_a_folder_of_sentence_transformers_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "bert", "bert")
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_N"}]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    lengths = {"max_seq_length": 32, "do_lower_case": False}
    (source / "sentence_bert_config.json").write_text(json.dumps(lengths))
    out = tmp_path / "long"
    said(monkeypatch, capsys, "extend", source, "--length", 200, "--out", out)
    assert json.loads((out / "modules.json").read_text()) == modules
    assert (out / "1_Pooling" / "config.json").is_file()
    assert (out / "2_N").is_dir()
    found = json.loads((out / "sentence_bert_config.json").read_text())
    assert found == {"max_seq_length": 200, "do_lower_case": False}


def test_a_damaged_table_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "roberta")
    model = AutoModel.from_pretrained(source)
    model.embeddings.position_embeddings.weight.data[9] = float("nan")
    model.save_pretrained(source)
    command = ["extend", source, "--length", 200, "--out", tmp_path / "long"]
    assert "the row of position 7 does not" in mistake(monkeypatch, capsys, *command)
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scaling", "yarn"], "must be one of waves, linear, group, cycle, hierarchy for"),
        (["--text", "a.txt", "--valid", "b.txt"], "leave `--text` out"),
        (["--length", 60], "must be larger than the 64 positions"),
    ],
)
def test_mistakes_about_tables_end_in_one_line(
    options: list[object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_model(tmp_path / "roberta")
    command = ["extend", tmp_path / "roberta", "--length", 200, "--out", tmp_path / "long"]
    assert message in mistake(monkeypatch, capsys, *command, *options)
    assert not (tmp_path / "long").exists()
