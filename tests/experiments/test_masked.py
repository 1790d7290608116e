"""`floater reproduce masked`, and the model with random weights that it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForMaskedLM, AutoTokenizer

from floater.errors import ArgumentError
from floater.experiments.base import ReproductionRequest
from floater.experiments.fresh_model import FreshModel
from floater.experiments.masked import MaskedByPosition
from floater.experiments.reproduce import reproduce
from floater.runs.folder import RunFolder
from floater.runs.results import Results

QUIET = Console(quiet=True)
LINES = ["the [UNK] sat-in on the mat, and the dog sat on the log."] * 20
TINY = FreshModel(vocabulary=300, layers=1, width=8, heads=2, positions=16)
FEW = (
    "training.updates=3",
    "training.evaluate_every=3",
    "training.save_every=3",
    "compare.draws=20",
)


def test_the_folder_loads_as_a_masked_language_model(tmp_path: Path) -> None:
    TINY.write(tmp_path / "model", LINES)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    ids = tokenizer("sat-in on the mat, [MASK]", return_tensors="pt")
    assert ids.input_ids[0, 0] == tokenizer.cls_token_id
    assert ids.input_ids[0, -1] == tokenizer.sep_token_id
    assert tokenizer.mask_token_id in ids.input_ids[0]
    read = str(tokenizer.decode(ids.input_ids[0], skip_special_tokens=True))
    assert read.strip() == "sat-in on the mat,"
    assert model(**ids).logits.shape == (1, ids.input_ids.shape[1], len(tokenizer))
    assert set(model.config.layer_types) == {"full_attention"}


def test_the_same_seed_gives_the_same_model_whatever_was_drawn_before(tmp_path: Path) -> None:
    for name, seed in {"one": 0, "same": 0, "other": 1}.items():
        before = torch.get_rng_state()
        FreshModel(300, 1, 8, 2, 16, seed).write(tmp_path / name, LINES)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
    one, same, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other")
    )
    assert one == same
    assert one != other


@pytest.mark.slow
def test_the_loss_is_measured_by_length_and_position(tmp_path: Path) -> None:
    def run() -> Results | None:
        return reproduce(
            "masked",
            "smoke",
            tmp_path,
            seeds=[0],
            workers=1,
            console=QUIET,
            keys=("rotary", "flow-stretch"),
            overrides=FEW,
        )

    found = run()
    assert found is not None
    assert Results.read(tmp_path / "masked-smoke") == found
    scores, by_length, differences = found.tables
    assert [row[0] for row in scores.rows] == ["rotary", "flow, stretched"]
    assert by_length.columns[1:] == [
        "16 tokens",
        "32 tokens, 0-16",
        "32 tokens, 16+",
        "64 tokens, 0-16",
        "64 tokens, 16-32",
        "64 tokens, 32+",
    ]
    assert all(None not in row for row in by_length.rows)
    assert [row[0] for row in differences.rows] == ["flow, stretched"]
    (figure,) = found.figures
    assert figure.x == ["0-16", "16-32", "32+"]
    assert [line.name for line in figure.series] == ["rotary", "flow, stretched"]
    # by position and in all: the same tokens
    folder = RunFolder(tmp_path / "masked-smoke" / "rotary-seed0")
    assert set(folder.scores().sets) == {"valid", "valid-16", "valid-32"}
    losses = {name: folder.scores().sets["valid"].scores[name].score for name in ("loss",)}
    by_bin = [
        folder.scores().sets["valid"].scores[f"loss {bin_}"].score
        for bin_ in ("0-16", "16-32", "32+")
    ]
    assert min(by_bin) <= losses["loss"] <= max(by_bin)
    assert run() == found  # nothing is trained or measured again


def test_an_unknown_variant_is_named_before_anything_is_written(tmp_path: Path) -> None:
    request = ReproductionRequest("smoke", tmp_path / "new", [0], 1, QUIET, ["learned"])
    with pytest.raises(ArgumentError, match=r"must be among rotary, .*, but has 'learned'"):
        MaskedByPosition().reproduce(request)
    assert not (tmp_path / "new").exists()
