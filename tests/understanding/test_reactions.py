"""The tool that prepares rxnfp's masked LM, on small copies of the two packages it reads."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

import reactions

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 24,
}
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "C",
    "c",
    "Cl",
    "Br",
    "O",
    "(",
    ")",
    "=",
    "1",
    ">>",
    ".",
    "[C@H]",
    "[O-]",
    "N",
    "%10",
]


def write_wheel(path: Path, state: dict[str, torch.Tensor]) -> Path:
    weights = io.BytesIO()
    torch.save(state, weights)
    parts: dict[str, str | bytes] = {
        "config.json": json.dumps(SIZES),
        "pytorch_model.bin": weights.getvalue(),
        "vocab.txt": "\n".join(WORDS),
    }
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in parts.items():
            packed.writestr(f"{reactions.WEIGHTS[2]}/{name}", data)
    return path


def packages(folder: Path) -> tuple[Path, Path, BertForMaskedLM]:
    """A wheel with a masked LM as torch once saved them, and an archive with reactions."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES))
    wheel = write_wheel(folder / "a.whl", model.state_dict())
    rows = [
        ("CCO>>CC=O", "test"),
        ("CCO>>CC=O", "test"),
        ("CCl>>CO", "test"),
        ("CCl>>CO", "train"),
        ("CBr.O>>CO", "train"),
    ]
    table = "\trxn\tsplit\n" + "".join(
        f"{number}\t{reaction}\t{split}\n" for number, (reaction, split) in enumerate(rows)
    )
    archive = folder / "b.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        entry = tarfile.TarInfo(reactions.REACTIONS[2])
        entry.size = len(table)
        packed.addfile(entry, io.BytesIO(table.encode()))
    return wheel, archive, model


def test_model_tokens_and_reactions_are_what_the_packages_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, archive, before = packages(tmp_path)
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys,
        "argv",
        ["reactions.py", "--out", str(out), "--wheel", str(wheel), "--archive", str(archive)],
    )
    reactions.main()
    assert "2 reactions to train on, 1 held out" in capsys.readouterr().out
    assert (out / "train.txt").read_text() == "CCO>>CC=O\nCCl>>CO\n"
    assert (
        out / "valid.txt"
    ).read_text() == "CBr.O>>CO\n"  # reactions in both splits are only trained on
    after, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(out / "model").eval(),
        AutoTokenizer.from_pretrained(out / "model"),
    )
    tokens = tokenizer("C[C@H](Br)c%10[O-]>>Cl.X")["input_ids"]
    expected = [
        "[CLS]",
        "C",
        "[C@H]",
        "(",
        "Br",
        ")",
        "c",
        "%10",
        "[O-]",
        ">>",
        "Cl",
        ".",
        "[UNK]",
        "[SEP]",
    ]
    assert tokenizer.convert_ids_to_tokens(tokens) == expected
    ids = torch.tensor([tokens])
    with torch.no_grad():
        assert torch.equal(after(input_ids=ids).logits, before.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(
    "which", ["no wheel", "garbage in the wheel", "no archive", "rows without reactions"]
)
def test_an_error_is_one_line_and_nothing_is_written(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, archive, _ = packages(tmp_path)
    if which == "no wheel":
        wheel.write_bytes(b"not a zip")
    elif which == "garbage in the wheel":
        with zipfile.ZipFile(wheel, "w") as packed:
            for name, data in {
                "config.json": "{}",
                "pytorch_model.bin": "garbage",
                "vocab.txt": "[PAD]",
            }.items():
                packed.writestr(f"{reactions.WEIGHTS[2]}/{name}", data)
    elif which == "no archive":
        archive.write_bytes(b"not a tar")
    else:
        with tarfile.open(archive, "w:gz") as packed:
            table = b"\trxn\tsplit\n0\t\ttest\n"
            entry = tarfile.TarInfo(reactions.REACTIONS[2])
            entry.size = len(table)
            packed.addfile(entry, io.BytesIO(table))
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys,
        "argv",
        ["reactions.py", "--out", str(out), "--wheel", str(wheel), "--archive", str(archive)],
    )
    with pytest.raises(SystemExit) as stop:
        reactions.main()
    assert stop.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("reactions.py: ")
    assert "\n" not in message
    assert not out.exists()


def test_other_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, archive, _ = packages(tmp_path)
    write_wheel(wheel, {"other.weight": torch.zeros(1)})
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "reactions.py",
            "--out",
            str(tmp_path / "out"),
            "--wheel",
            str(wheel),
            "--archive",
            str(archive),
        ],
    )
    with pytest.raises(SystemExit) as stop:
        reactions.main()
    assert stop.value.code == 2
    assert "does not hold the masked LM that was expected" in capsys.readouterr().err
    assert not (tmp_path / "out" / "model").exists()
