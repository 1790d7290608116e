from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    RobertaForMaskedLM,
    T5ForConditionalGeneration,
)

import floater
from floater.errors import AttachmentError, SavedError

from .attach_models import MOVING, batch, make

CLASSES: dict[str, Any] = {
    "bert": AutoModelForMaskedLM,
    "marian": AutoModelForSeq2SeqLM,
    "roberta": AutoModelForMaskedLM,
}

LOAD = """
import sys, torch, transformers, floater
from safetensors.torch import load_file, save_file
torch.set_num_threads(int(sys.argv[5]))  # how a product is cut into threads decides its last bit
model = floater.from_pretrained(getattr(transformers, sys.argv[1]), sys.argv[2])
with torch.no_grad():
    out = model(**load_file(sys.argv[3])).logits
save_file({"out": out}, sys.argv[4])
"""


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, dict[str, torch.Tensor], Path]:
    model, inputs = make("bert"), batch("bert")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "saved")
    return model, inputs, tmp_path / "saved"


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("positions", ["keep", "replace"])
@pytest.mark.parametrize("name", CLASSES)
def test_saved_models_come_back_the_same(
    name: str, positions: Any, baked: bool, tmp_path: Path
) -> None:
    model, inputs = make(name), batch(name)
    attached = floater.attach(model, MOVING, positions=positions)
    if baked:
        attached.bake(16)
    floater.save_pretrained(model, tmp_path / "out")
    back = floater.from_pretrained(CLASSES[name], tmp_path / "out")
    again = floater.attachment(back)
    assert again is not None
    assert again.baked_length == (16 if baked else None)
    with torch.no_grad():
        assert torch.equal(back(**inputs).logits, model(**inputs).logits)
    suffixes = {file.suffix for file in (tmp_path / "out").iterdir()}
    assert suffixes <= {
        ".json",
        ".safetensors",
        ".md",
    }, "nothing but JSON, safetensors and the card"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{attached.num_parameters():,}" in card
    assert "floater.from_pretrained" in card


@pytest.mark.slow
def test_a_new_process_gives_identical_outputs(saved: Any, tmp_path: Path) -> None:
    model, inputs, folder = saved
    save_file(inputs, tmp_path / "in.safetensors")
    threads = torch.get_num_threads()
    arguments = [
        "AutoModelForMaskedLM",
        folder,
        tmp_path / "in.safetensors",
        tmp_path / "out.safetensors",
        threads,
    ]
    subprocess.run([sys.executable, "-c", LOAD, *map(str, arguments)], check=True)
    with torch.no_grad():
        assert torch.equal(load_file(tmp_path / "out.safetensors")["out"], model(**inputs).logits)


def test_the_base_alone_still_loads_the_hugging_face_way(saved: Any) -> None:
    model, inputs, folder = saved
    plain = AutoModelForMaskedLM.from_pretrained(folder)
    attached = floater.attachment(model)
    assert attached is not None
    with torch.no_grad(), attached.disabled():
        assert torch.equal(plain(**inputs).logits, model(**inputs).logits)


def test_saving_over_a_folder_replaces_it_whole(saved: Any) -> None:
    model, inputs, folder = saved
    attached: Any = floater.attachment(model)
    with torch.no_grad():
        attached.encoder.initial += 1.0
    floater.save_pretrained(model, folder)
    assert [path for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    back = floater.from_pretrained(AutoModelForMaskedLM, folder)
    with torch.no_grad():
        assert torch.equal(back(**inputs).logits, model(**inputs).logits)


def test_attachment_alone_knows_its_base(tmp_path: Path) -> None:
    model, inputs = make("bert"), batch("bert")
    model.save_pretrained(tmp_path / "base")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path / "adapter", base=False)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    back = floater.from_pretrained(
        AutoModelForMaskedLM, tmp_path / "adapter", base=tmp_path / "base"
    )
    with torch.no_grad():
        assert torch.equal(back(**inputs).logits, model(**inputs).logits)
    other = make("bert")
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight[3, 3] += 1e-3
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(SavedError, match="was made for another base"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "adapter", base=tmp_path / "other")


def damage(folder: Path, how: str) -> None:
    weights, config = folder / "floater.safetensors", folder / "floater_config.json"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:200])
    elif how == "changed":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(bytes(data))
    elif how == "gone":
        weights.unlink()
    elif how == "json":
        config.write_text("{", encoding="utf-8")
    elif how == "newer":
        config.write_text(
            json.dumps({**json.loads(config.read_text()), "format": 99}), encoding="utf-8"
        )
    elif how == "incomplete":
        config.write_text(json.dumps({"format": 1}), encoding="utf-8")
    elif how == "mismatched":
        tensors = {key: tensor[..., :-1].contiguous() for key, tensor in load_file(weights).items()}
        save_file(tensors, weights)
        description = json.loads(config.read_text())
        del description["weights_sha256"]
        config.write_text(json.dumps(description), encoding="utf-8")
    elif how == "base":
        (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:300]
        )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", r"floater.safetensors is damaged or was changed after it was saved"),
        ("changed", r"floater.safetensors is damaged or was changed after it was saved"),
        ("gone", r"must hold floater.safetensors, but does not"),
        ("json", r"floater_config.json is damaged"),
        ("newer", r"but has format 99 and encoder 'flow'; install a newer"),
        ("incomplete", r"description of the attachment lacks 'encoder'"),
        ("mismatched", r"do not fit their description"),
        ("base", r"The base model at .* cannot be loaded"),
    ],
)
@pytest.mark.parametrize("hashed", [True, False])
def test_damaged_folders_are_refused_in_one_line(
    saved: Any, how: str, message: str, hashed: bool
) -> None:
    _, _, folder = saved
    damage(folder, how)
    if not hashed:  # as saved by earlier versions
        (folder / "hashes.json").unlink()
    elif how != "gone":
        message = (
            r"is damaged or was changed after it was saved: its hash is not the recorded one; save"
            r" the model again, or remove"
        )
    with pytest.raises(SavedError, match=message) as caught:
        floater.from_pretrained(AutoModelForMaskedLM, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("bert", AutoModelForSeq2SeqLM),
        ("bert", RobertaForMaskedLM),  # the same layout: would come back with random weights
        ("bert", T5ForConditionalGeneration),
        ("bert", AutoConfig),
        ("marian", AutoModelForCausalLM),  # makes a decoder alone
    ],
)
@pytest.mark.parametrize("stacks", [None, ("encoder",)])
def test_a_class_that_does_not_fit_is_named(
    name: str, used: Any, stacks: Any, tmp_path: Path
) -> None:
    model = make(name)
    floater.attach(model, MOVING, sites=floater.Sites("qkv", stacks=stacks))
    floater.save_pretrained(model, tmp_path / "out")
    saved = type(model).__name__
    message = (
        rf"must fit the model at .*out, saved as {saved}, but is {used.__name__}; use"
        rf" transformers\.{saved}, or an Auto class"
    )
    with pytest.raises(SavedError, match=message) as caught:
        floater.from_pretrained(used, tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_class_that_does_not_fit_a_base_on_the_hub_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # no retries
    model = make("bert")
    model.config._name_or_path = "someone/somewhere"
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path, base=False)
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    monkeypatch.setattr(
        PreTrainedConfig, "get_config_dict", lambda *args, **kwargs: (dict(config), kwargs)
    )
    message = (
        r"must fit the model at someone/somewhere, saved as BertForMaskedLM, but is"
        r" AutoModelForSeq2SeqLM"
    )
    with pytest.raises(SavedError, match=message):
        floater.from_pretrained(AutoModelForSeq2SeqLM, tmp_path, local_files_only=True)
    with pytest.raises(SavedError, match=r"cannot be loaded: .* Pass base=… with the folder"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path, local_files_only=True)


def test_a_model_may_come_back_without_its_head(saved: Any) -> None:
    model, inputs, folder = saved
    back = floater.from_pretrained(AutoModel, folder)
    with torch.no_grad():
        assert torch.equal(back(**inputs).last_hidden_state, model.bert(**inputs).last_hidden_state)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(SavedError, match="must be a folder with a saved model, but does not exist"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SavedError, match=r"must hold floater_config\.json"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "empty")
    plain = make("bert")
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(SavedError, match="holds a model without an attachment"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "plain")
    with pytest.raises(AttachmentError, match="has no attachment"):
        floater.save_pretrained(plain, tmp_path / "x")
    nowhere: Any = None
    with pytest.raises(SavedError, match="`folder` must be a path, but is None"):
        floater.from_pretrained(AutoModelForMaskedLM, nowhere)
    floater.attach(plain, MOVING)
    with pytest.raises(SavedError, match="`folder` must be a path, but is None"):
        floater.save_pretrained(plain, nowhere)
    floater.save_pretrained(plain, tmp_path / "saved")
    with pytest.raises(
        SavedError,
        match=r"The base model at .* cannot be loaded: .* unexpected keyword argument 'bse'",
    ):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "saved", bse="elsewhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SavedError, match="must be a folder, but is a file"):
        floater.save_pretrained(plain, tmp_path / "file")
