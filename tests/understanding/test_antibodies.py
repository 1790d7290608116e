"""The tool that prepares AntiBERTy's masked LM, on small copies of the two packages it reads."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

import antibodies

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(antibodies.AMINO_ACIDS)]
SIZES: dict[str, Any] = {
    "_name_or_path": "somewhere",
    "architectures": ["AntiBERTy"],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": len(WORDS),
}
OTHER_HEADS = ("bert.pooler.dense.weight", "cls.species.weight", "cls.chain.bias", "cls.graft.bias")
TRAINED, HELD_OUT = "ARGDY", "ARDVY"
"""A third loop on each side of the split."""


def write_wheel(path: Path, state: dict[str, torch.Tensor], words: list[str] = WORDS) -> Path:
    weights = io.BytesIO()
    torch.save(state, weights)
    parts: tuple[str | bytes, ...] = (json.dumps(SIZES), weights.getvalue(), "\n".join(words))
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in zip(antibodies.FILES, parts, strict=True):
            packed.writestr(f"{antibodies.WEIGHTS[2]}/{name}", data)
    return path


def aligned(first: str, loop: str) -> str:
    """A sequence with gaps that ends in the third loop and two more amino acids."""
    start, end = antibodies.LOOP.start, antibodies.LOOP.stop
    return (first.ljust(start, "-") + loop.ljust(end - start, "-") + "WG").ljust(
        antibodies.ALIGNED, "-"
    )


def write_archive(path: Path, rows: list[str]) -> Path:
    table = "seq_id,input_seq,aligned_seq,score\n" + "".join(
        f"{number},{row.replace('-', '')},{row},0.5\n" for number, row in enumerate(rows)
    )
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(antibodies.SEQUENCES[2], table)
    return path


def packages(folder: Path) -> tuple[Path, Path, BertForMaskedLM]:
    """A wheel with a masked LM that has more heads, and one with sequences."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES))
    others = {name: torch.zeros(2) for name in OTHER_HEADS}
    wheel = write_wheel(folder / "a.whl", {**model.state_dict(), **others})
    firsts = (("EVQ", TRAINED), ("QVQ", HELD_OUT), ("EVQ", TRAINED), ("EVK", HELD_OUT))
    archive = write_archive(folder / "b.whl", [aligned(*first) for first in firsts])
    return wheel, archive, model


def run(monkeypatch: pytest.MonkeyPatch, out: Path, wheel: Path, archive: Path) -> None:
    command = ["antibodies.py", "--out", out, "--wheel", wheel, "--archive", archive]
    monkeypatch.setattr(sys, "argv", [str(part) for part in command])
    antibodies.main()


def test_model_tokens_and_sequences_are_what_the_packages_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, archive, before = packages(tmp_path)
    out = tmp_path / "out"
    run(monkeypatch, out, wheel, archive)
    assert "1 antibodies to train on, 2 held out" in capsys.readouterr().out
    assert (out / "train.txt").read_text() == f"EVQ{TRAINED}WG\n"
    assert (out / "valid.txt").read_text() == f"QVQ{HELD_OUT}WG\nEVK{HELD_OUT}WG\n"
    assert "somewhere" not in (out / "model" / "config.json").read_text()
    after, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(out / "model").eval(),
        AutoTokenizer.from_pretrained(out / "model"),
    )
    tokens = tokenizer("EVQ[MASK]YXa")["input_ids"]
    expected = ["[CLS]", "E", "V", "Q", "[MASK]", "Y", "[UNK]", "[UNK]", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokens) == expected
    ids = torch.tensor([tokens])
    with torch.no_grad():
        assert torch.equal(after(input_ids=ids).logits, before.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(
    "which",
    [
        "no wheel",
        "no file",
        "other weights",
        "no special tokens",
        "no archive",
        "other letters",
        "another alignment",
        "nothing held out",
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, archive, model = packages(tmp_path)
    good = aligned("QVQ", HELD_OUT)
    rows = {
        "other letters": [good, aligned("EVX", TRAINED)],
        "another alignment": [good, aligned("EVQ", TRAINED)[:-1]],
        "nothing held out": [aligned("EVQ", TRAINED)],
    }
    if which == "no wheel":
        wheel.write_bytes(b"not a zip")
    elif which == "no file":
        wheel.unlink()
    elif which == "other weights":
        write_wheel(wheel, {"other.weight": torch.zeros(1)})
    elif which == "no special tokens":
        write_wheel(wheel, model.state_dict(), words=["A", "C"])
    elif which == "no archive":
        archive.write_bytes(b"not a zip")
    else:
        write_archive(archive, rows[which])
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, out, wheel, archive)
    assert stop.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("antibodies.py: ")
    assert "\n" not in message
    assert not out.exists()
