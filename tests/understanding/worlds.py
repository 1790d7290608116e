"""A tiny pretrained model with its tokenizer, and sentences whose labels can be learned."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from floater.experiments import tiny_data

WORDS = (
    *("the", "a", "dog", "cat", "bird", "fish", "tree", "runs", "sees", "eats", "sleeps"),
    *("good", "bad", "big", "small", "not", "and", "or", "then", "now", "here", "there"),
)
KINDS: dict[str, tuple[Any, Any]] = {
    "roberta": (RobertaModel, RobertaConfig),
    "bert": (BertModel, BertConfig),
    "bert with head": (BertForMaskedLM, BertConfig),
}
LLAMA_TARGETS = {
    "blocks": "model.layers.*",
    **{letter: f"model.layers.*.self_attn.{letter}_proj" for letter in "qkv"},
}


def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_data.learned_tokenizer(WORDS)


def write_model(folder: Path, kind: str = "roberta", dtype: torch.dtype = torch.float32) -> Path:
    """A model with random weights large enough to matter, and dropout."""
    return tiny_data.write_model(folder, tokenizer(), *KINDS[kind], dim=16, rows=66, dtype=dtype)


def sentence(draw: random.Random, longest: int = 12) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, longest)))


def text(count: int, seed: int) -> list[str]:
    """Sentences whose words follow each other, so that a masked one can be guessed."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        first = draw.randrange(len(WORDS))
        lines.append(
            " ".join(WORDS[(first + step) % len(WORDS)] for step in range(draw.randint(5, 20)))
        )
    return lines


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def sst2(path: Path, count: int, seed: int) -> str:
    """Does the sentence contain `good`?"""
    draw = random.Random(seed)
    rows = [sentence(draw) for _ in range(count)]
    return write_lines(path, ["sentence\tlabel", *(f"{row}\t{int('good' in row)}" for row in rows)])


def rte(path: Path, count: int, seed: int) -> str:
    """Do both sentences begin with the same word?"""
    draw, lines = random.Random(seed), ["index\tsentence1\tsentence2\tlabel"]
    for number in range(count):
        first, other = sentence(draw), sentence(draw)
        if draw.random() < 0.5:
            other = f"{first.split()[0]} {other}"
        lines.append(
            f"{number}\t{first}\t{other}\t"
            f"{'entailment' if first.split()[0] == other.split()[0] else 'not_entailment'}"
        )
    return write_lines(path, lines)


def stsb(path: Path, count: int, seed: int) -> str:
    """How many words do the sentences share?"""
    draw, lines = random.Random(seed), ["index\tsentence1\tsentence2\tscore"]
    for number in range(count):
        first, other = sentence(draw), sentence(draw)
        lines.append(
            f"{number}\t{first}\t{other}\t"
            f"{min(5.0, len({*first.split()} & {*other.split()}) * 1.0):.3f}"
        )
    return write_lines(path, lines)


FILES = {"sst2": sst2, "rte": rte, "stsb": stsb}


def glue(folder: Path, name: str = "rte", kind: str = "roberta", **changes: Any) -> dict[str, Any]:
    """Settings of a GLUE run; its model and data are written to a folder, the model once."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / kind.replace(" ", "-")
    if not model.exists():
        write_model(model, kind)
    files = {
        split: FILES[name](folder / f"{name}.{split}.tsv", count, seed)
        for split, count, seed in (("train", 48, 1), ("valid", 20, 2))
    }
    settings: dict[str, Any] = {
        "task": "glue",
        "model": {"name": str(model)},
        "data": {"name": name, **files},
        "max_length": 32,
        "training": {
            "updates": 4,
            "batch": 8,
            "lr": 0.001,
            "save_every": 2,
            "evaluate_every": 4,
            "log_every": 1,
        },
        "compare": {"seeds": [0, 1], "draws": 200},
    }
    for key, value in changes.items():
        settings[key] = (
            {**settings[key], **value}
            if isinstance(settings.get(key), dict) and isinstance(value, dict)
            else value
        )
    return settings


def masked(folder: Path, kind: str = "roberta", **changes: Any) -> dict[str, Any]:
    """Settings of a masked-LM run; its model and text are written to a folder, the model once."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / kind.replace(" ", "-")
    if not model.exists():
        write_model(model, kind)
    files = {
        split: [write_lines(folder / f"{split}.txt", text(count, seed))]
        for split, count, seed in (("train", 60, 1), ("valid", 20, 2))
    }
    training = {"batch": 8, "lr": 0.01, "weight_decay": 0.0, "log_every": 1}
    settings: dict[str, Any] = {
        "task": "masked_lm",
        "model": {"name": str(model), "dropout": 0.0},
        "data": files,
        "max_length": 24,
        "training": {**training, "part": "flow", "updates": 4},
        "head": {
            "training": {**training, "part": "head", "updates": 4, "take": "best", "patience": 2}
        },
        "compare": {"seeds": [0], "draws": 200},
    }
    for key, value in changes.items():
        settings[key] = (
            {**settings[key], **value}
            if isinstance(settings.get(key), dict) and isinstance(value, dict)
            else value
        )
    return settings


def write_causal_model(folder: Path, kind: str = "gpt2") -> Path:
    """A causal language model with random weights; its tokenizer has no padding token."""
    fast_tokenizer = tokenizer()
    fast_tokenizer.pad_token = None
    words: dict[str, Any] = {
        "vocab_size": len(fast_tokenizer),
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    torch.manual_seed(0)
    model: Any = (
        GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **words))
        if kind == "gpt2"
        else LlamaForCausalLM(
            LlamaConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=64,
                **words,
            )
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # the default weights hardly change the outputs
                parameter.mul_(8.0)
    model.save_pretrained(folder)
    fast_tokenizer.save_pretrained(folder)
    return folder


def causal(folder: Path, kind: str = "gpt2", **changes: Any) -> dict[str, Any]:
    """Settings of a causal-LM run; its model and text are written to a folder, the model once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / kind).exists():
        write_causal_model(folder / kind, kind)
    files = {
        split: [write_lines(folder / f"{split}.txt", text(count, seed))]
        for split, count, seed in (("train", 60, 1), ("valid", 20, 2))
    }
    settings: dict[str, Any] = {
        "task": "causal_lm",
        "model": {"name": str(folder / kind), "dropout": 0.0},
        "data": files,
        "max_length": 24,
        "training": {"batch": 8, "lr": 0.01, "log_every": 1, "updates": 4, "save_every": 2},
        "compare": {"seeds": [0], "draws": 200},
    }
    if kind == "llama":
        settings["positions"] = {"sites": {"kind": "qkv", "targets": LLAMA_TARGETS}}
    for key, value in changes.items():
        settings[key] = (
            {**settings[key], **value}
            if isinstance(settings.get(key), dict) and isinstance(value, dict)
            else value
        )
    return settings
