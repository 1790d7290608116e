"""Runs of SQuAD and RACE: frozen variants are identical, and scores follow the data set's rules."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering

from floater.tasks.race.task import RaceConfig, RaceTask
from floater.tasks.squad.task import SquadConfig, SquadTask
from floater.tasks.understanding.models import load
from floater.training.run import run

from .worlds import sentence, tokenizer, write_model


def write_squad(path: Path, count: int, seed: int, *, impossible: bool) -> str:
    draw, paragraphs = random.Random(seed), []
    for number in range(count):
        words = sentence(draw, 30).split()
        index = draw.randrange(len(words))
        entry: dict[str, Any] = {"id": f"q{number}", "question": f"the {words[index]}"}
        start = len(" ".join(words[:index])) + bool(index)
        entry["answers"] = [{"text": words[index], "answer_start": start}]
        if impossible:
            entry["is_impossible"] = number % 3 == 0
            if entry["is_impossible"]:
                entry["answers"] = []
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    path.write_text(
        json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    return str(path)


def write_race(path: Path, count: int, seed: int) -> list[str]:
    draw, lines = random.Random(seed), []
    for number in range(count):
        options = [draw.choice(("dog", "cat", "bird", "fish")) for _ in range(4)]
        entry = {
            "id": f"{'middle' if number % 2 else 'high'}{number}.txt",
            "article": sentence(draw, 20),
            "questions": ["the _ runs"],
            "options": [options],
            "answers": [draw.choice("ABCD")],
        }
        lines.append(json.dumps(entry))
    path.write_text("\n".join(lines) + "\n")
    return [str(path)]


TRAINING = {
    "updates": 2,
    "batch": 8,
    "lr": 0.001,
    "save_every": 2,
    "evaluate_every": 2,
    "log_every": 1,
}


@pytest.mark.parametrize("impossible", [False, True])
def test_squad_runs_and_stores_official_predictions(tmp_path: Path, impossible: bool) -> None:
    files = {
        split: write_squad(tmp_path / f"{split}.json", 16, seed, impossible=impossible)
        for split, seed in (("train", 1), ("valid", 2))
    }
    settings: dict[str, Any] = {
        "model": {"name": str(write_model(tmp_path / "model"))},
        "data": {**files, "stride": 4, "max_question": 8, "max_train": 12},
        "max_length": 24,
        "training": {**TRAINING, "freeze_flow": True},
    }
    config = SquadConfig(**settings)
    runs = {
        variant: run(SquadTask(variant_config), tmp_path / variant)
        for variant, variant_config in config.variants().items()
    }
    predictions = [
        json.loads((folder.predictions / "valid.json").read_text()) for folder in runs.values()
    ]
    assert predictions[0] == predictions[1], "frozen zero dynamics change nothing"
    assert set(predictions[0]) == {f"q{number}" for number in range(16)}
    scores = runs["base"].scores().sets["valid"].scores
    assert {"exact", "f1"} <= set(scores)
    assert ("NoAns_f1" in scores) == impossible
    assert runs["base"].facts()["data"]["train"]["questions"] == 12
    assert 0 <= scores["exact"].score <= scores["f1"].score <= 100


def test_the_loss_of_squad_is_the_stock_one(tmp_path: Path) -> None:
    write_squad(tmp_path / "train.json", 6, 1, impossible=True)
    where = write_model(tmp_path / "model")
    settings: dict[str, Any] = {
        "model": {"name": str(where)},
        "data": {
            "train": tmp_path / "train.json",
            "valid": tmp_path / "train.json",
            "stride": 4,
            "max_question": 8,
        },
    }
    config = SquadConfig(**settings, max_length=24)
    task, fast_tokenizer = SquadTask(config), tokenizer()
    windows = task.encode(task.splits()["train"], fast_tokenizer, training=True)
    batch = task.collate(fast_tokenizer)([windows[number] for number in range(len(windows))])
    torch.manual_seed(0)
    model: Any = load(AutoModelForQuestionAnswering, where).eval()
    with torch.no_grad():
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        stock = model(
            **inputs, start_positions=batch["labels"][:, 0], end_positions=batch["labels"][:, 1]
        ).loss
        assert float(task.loss(model, batch)) / batch["labels"].numel() == pytest.approx(
            float(stock), rel=1e-5
        )


def test_race_runs_frozen_as_in_the_paper(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": str(write_model(tmp_path / "model", "bert"))},
        "data": {
            split: write_race(tmp_path / f"{split}.jsonl", 12, seed)
            for split, seed in (("train", 1), ("valid", 2))
        },
        "max_length": 24,
        "training": TRAINING,
    }
    config = RaceConfig(**settings)
    assert config.training.freeze_flow
    runs = {
        variant: run(RaceTask(variant_config), tmp_path / variant)
        for variant, variant_config in config.variants().items()
    }
    predictions = [
        json.loads((folder.predictions / "valid.json").read_text()) for folder in runs.values()
    ]
    assert predictions[0] == predictions[1]
    assert set(predictions[0].values()) <= set("ABCD")
    scores = runs["floater"].scores().sets["valid"].scores
    assert scores["accuracy"].score == pytest.approx(
        (scores["middle"].score + scores["high"].score) / 2
    )
    task = RaceTask(config)
    table = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 1, 1]], dtype=float)
    whole = np.ones((1, 3))
    assert {
        key: measure(table, whole)[0] for key, measure in task.measures.items()
    } == pytest.approx(task.scores(table))


def test_the_loss_of_race_is_over_options(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": str(write_model(tmp_path / "model"))},
        "data": {
            "train": write_race(tmp_path / "train.jsonl", 3, 1),
            "valid": write_race(tmp_path / "valid.jsonl", 3, 2),
        },
    }
    config = RaceConfig(**settings, max_length=24)
    task, fast_tokenizer = RaceTask(config), tokenizer()
    rows = task.encode(task.splits()["train"], fast_tokenizer, training=True)
    batch = task.collate(fast_tokenizer)([rows[number] for number in range(3)])
    assert batch["input_ids"].dim() == 3
    model: Any = load(task.auto_class, config.model.name).eval()
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        assert logits.shape == (3, 4)
        expected = F.cross_entropy(logits, batch["labels"], reduction="sum")
        assert float(task.loss(model, batch)) == pytest.approx(float(expected), rel=1e-6)
