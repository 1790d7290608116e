"""tools/fresh_modernbert.py: a model with random weights that the task masked_lm trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

import fresh_modernbert

TEXT = "= Head =\nthe <unk> sat @-@ in on the mat , and the dog sat on the log .\n" * 20
SIZES = ("--vocabulary=300", "--layers=1", "--width=8", "--heads=2", "--positions=16")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "wiki.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_folder_loads_as_a_masked_language_model(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "bert"
    fresh_modernbert.main([str(text), "--wikitext", f"--out={out}", *SIZES])
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForMaskedLM.from_pretrained(out)
    ids = tokenizer("sat-in on the mat, [MASK]", return_tensors="pt")
    assert ids.input_ids[0, 0] == tokenizer.cls_token_id
    assert ids.input_ids[0, -1] == tokenizer.sep_token_id
    assert tokenizer.mask_token_id in ids.input_ids[0]
    read = str(tokenizer.decode(ids.input_ids[0], skip_special_tokens=True))
    assert read.strip() == "sat-in on the mat,"
    assert model(**ids).logits.shape == (1, ids.input_ids.shape[1], len(tokenizer))
    assert model.config.max_position_embeddings == 16


def test_the_same_seed_gives_the_same_model(text: Path, tmp_path: Path) -> None:
    for name, seed in {"one": 0, "same": 0, "other": 1}.items():
        fresh_modernbert.main([str(text), f"--out={tmp_path / name}", *SIZES, f"--seed={seed}"])
    one, same, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other")
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--width=9"], "--width must be a multiple of --heads, 2, but is 9"),
        (["--vocabulary=10"], "--vocabulary must be at least 300, but is 10"),
        (["--out=."], "--out must be a new or empty folder, but . is not"),
    ],
)
def test_wrong_options_end_in_one_line(
    text: Path, tmp_path: Path, changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        fresh_modernbert.main([str(text), f"--out={tmp_path / 'bert'}", *SIZES, *changes])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fresh_modernbert.main([str(tmp_path / "none.txt"), f"--out={tmp_path / 'bert'}"])
    assert "none.txt" in capsys.readouterr().err
