"""Small files of documents, a tiny sentence encoder, and configs that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from tiny_tokenizers import tiny

GOOD = ["a fine film .", "who would not like it ?", "the Normans loved every scene"]
BAD = ["dull .", "nothing happens at all in the whole of it", "they left the room"]


def write_files(folder: Path, documents: int = 40) -> dict[str, Any]:
    """Reviews of one to five sentences with folds; the config."""
    random = np.random.default_rng(3)
    lines = []
    for number in range(documents):
        pool = GOOD if number % 2 else BAD
        count = int(random.integers(1, 6))
        chosen = [pool[int(i)] for i in random.integers(0, len(pool), count)]
        entry = {"name": f"r{number}", "says": chosen, "mood": "up" if number % 2 else "down"}
        lines.append(json.dumps({**entry, "part": number // 2 % 4}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reviews.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "task": "documents",
        "data": {
            "documents": str(folder / "reviews.jsonl"),
            "fields": {"id": "name", "text": "says", "label": "mood"},
            "test_share": 0.25,
            "valid_share": 0.25,
        },
        "model": {"preset": "tiny", "dropout": 0.0},
        "training": {"epochs": 2, "batch": 8, "threads": 1, "log_every": 1},
    }


def write_encoder(folder: Path) -> Path:
    """A BERT of random weights with its tokenizer."""
    tokenizer = tiny("bert")
    torch.manual_seed(4)
    model = BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            max_position_embeddings=40,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
