"""Saved folders: tampered, shared, on a full disk."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
)

import floater
from floater.errors import (
    SavedError,
)
from floater.files import record_hashes

from .attach_models import MOVING, batch, logits, make


def rewritten(folder: Path, tensors: dict[str, Tensor] | None = None, **description: Any) -> None:
    """Change a saved attachment and make its hashes fit again, as someone who tampers would."""
    if tensors is not None:
        save_file(tensors, folder / "floater.safetensors")
    path = folder / "floater_config.json"
    changed = {**json.loads(path.read_text()), **description}
    changed.pop("weights_sha256", None)
    path.write_text(json.dumps(changed))
    record_hashes(folder)


def test_baked_tables_of_a_tampered_save_are_refused(tmp_path: Path) -> None:
    for name, change, message in (
        ("shape", lambda table: table[:, :-1], "finite baked encodings of shape"),
        ("nan", lambda table: table * float("nan"), "not all finite"),
        ("length", lambda table: table[:5], "finite baked encodings of shape"),
        ("whole", lambda table: table.to(torch.int64), "are torch.int64"),
        ("none", None, "must hold baked encodings if and only if"),
    ):
        model = make("bert")
        floater.attach(model, MOVING).bake(12)
        folder = tmp_path / name
        floater.save_pretrained(model, folder)
        tensors = load_file(folder / "floater.safetensors")
        table = tensors.pop("baked.all")
        if change is not None:
            tensors["baked.all"] = change(table).contiguous()  # type: ignore[no-untyped-call]
        rewritten(folder, tensors)
        with pytest.raises(SavedError, match=message):
            floater.from_pretrained(AutoModelForMaskedLM, folder)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    model = make("bert")
    attached: Any = floater.attach(model, MOVING)
    with torch.no_grad():
        attached.encoder.initial[0, 0] = float("nan")
    floater.save_pretrained(model, tmp_path)
    with pytest.raises(SavedError, match=r"hold finite weights, but all.initial is not finite"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path)


def test_huge_sizes_in_a_saved_description_take_no_memory(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path)
    encoder = json.loads((tmp_path / "floater_config.json").read_text())["encoder"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for hidden in (10_000_000, 10**9, 10**19):
        rewritten(tmp_path, encoder={**encoder, "hidden": hidden})
        with pytest.raises(
            SavedError,
            match=r"do not fit their description: all.dynamics.first.weight must have|is damaged: ",
        ):
            floater.from_pretrained(AutoModelForMaskedLM, tmp_path)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("base", [True, False])
def test_flipped_bytes_of_the_base_are_noticed(tmp_path: Path, base: bool, hashed: bool) -> None:
    model = make("bert")
    model.save_pretrained(tmp_path / "base")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "saved", base=base)
    weights = (tmp_path / "saved" if base else tmp_path / "base") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    for place in (len(data) // 3, len(data) // 2, 2 * len(data) // 3):
        data[place] ^= 1
    weights.write_bytes(data)
    if not hashed:
        (tmp_path / "saved" / "hashes.json").unlink()
    with pytest.raises(SavedError, match=r"damaged or w.*changed after|was made for another base"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "saved", base=tmp_path / "base")


def test_saving_keeps_what_else_is_in_the_folder(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    (tmp_path / "out" / "notes").mkdir(parents=True)
    (tmp_path / "out" / "notes" / "a.txt").write_text("mine")
    (tmp_path / "out" / "vocab.txt").write_text("mine")
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_text("stale")
    floater.save_pretrained(model, tmp_path / "out")
    assert (
        (tmp_path / "out" / "notes" / "a.txt").read_text()
        == (tmp_path / "out" / "vocab.txt").read_text()
        == "mine"
    )
    assert not (tmp_path / "out" / "model-00001-of-00002.safetensors").exists()
    floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_saving_where_one_works_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make("bert"), batch("bert")
    attached: Any = floater.attach(model, MOVING)
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        floater.save_pretrained(model, ".")
        Path("after.txt").write_text("the folder is still there")
        with torch.no_grad():
            attached.encoder.initial += 1.0
    floater.save_pretrained(model, ".")
    assert Path("mine.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))
    back = floater.from_pretrained(AutoModelForMaskedLM, ".")
    with torch.no_grad():
        assert torch.equal(logits(back, inputs), logits(model, inputs))


def test_saving_respects_permissions(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    mask = os.umask(0o077)
    try:
        for folder in (private, tmp_path / "new"):
            floater.save_pretrained(model, folder)
            assert folder.stat().st_mode & 0o777 == 0o700
            assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    finally:
        os.umask(mask)


def test_a_full_disk_leaves_the_old_model_whole(tmp_path: Path) -> None:
    model, inputs = make("bert"), batch("bert")
    attached: Any = floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "out")
    with torch.no_grad():
        before = logits(model, inputs)
        attached.encoder.initial += 1.0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            SavedError, match=r"out cannot be written: .* The previous content is unchanged"
        ):
            floater.save_pretrained(model, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    back = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(logits(back, inputs), before)


def test_code_in_a_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    folder = tmp_path / "saved"
    floater.save_pretrained(model, folder)
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import BertConfig as EvilConfig, BertForMaskedLM as EvilModel\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "evil.EvilConfig", "AutoModelForMaskedLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(config))
    record_hashes(folder)

    def asked(*_: object) -> str:
        raise AssertionError("asked on standard input")

    monkeypatch.setattr("builtins.input", asked)
    with pytest.raises(SavedError, match="cannot be loaded"):
        floater.from_pretrained(AutoModelForMaskedLM, folder)
    assert not (tmp_path / "ran").exists()


def test_a_model_card_shows_names_as_they_are(tmp_path: Path) -> None:
    model = make("bert")
    model.config._name_or_path = "<script>alert(1)</script> | x\n---\nlicense: [stolen](http://x)"
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path, base=False)
    card = (tmp_path / "README.md").read_text()
    assert "<script" not in card.split("---", 2)[2]
    assert "\nlicense" not in card
    assert "[stolen](" not in card.split("---\n\n", 1)[1]
