"""Tiny language understanding tasks, generated in seconds, and a random RoBERTa for them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer
from torch import nn
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from ..files import new_folder, write_text
from ..recipes import merge, to_yaml
from ..tasks.race.data import LETTERS, OPTIONS
from ..tasks.translation.embedded import Embedded, Lines, generate, spell

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TRAIN, VALID = 1600, 300
"""Number of examples of each split."""
_MAX_NUMBER = 99
_LINES = Embedded(
    train=Lines(pairs=600), valid=Lines(pairs=100), test=Lines(pairs=1), largest=_MAX_NUMBER
)
_QUESTION = "which number comes after {}?"


def learned_tokenizer(lines: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer for the words of some lines, with the sentence format of RoBERTa."""
    tokenizer = Tokenizer(WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.train_from_iterator(
        lines, WordLevelTrainer(special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    )
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        cls_token="<s>",
        sep_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )


def write_model(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    model_class: Any = RobertaForMaskedLM,
    config_class: Any = RobertaConfig,
    *,
    dim: int = 32,
    rows: int = 130,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a model with two blocks and random weights, always the same, and its tokenizer.

    Args:
        folder: folder to write.
        tokenizer: its tokenizer.
        model_class: class of the model.
        config_class: class of its config.
        dim: hidden size.
        rows: number of rows of its position table.
        dtype: type of the saved weights.
    """
    torch.manual_seed(0)
    model = model_class(
        config_class(
            vocab_size=len(tokenizer),
            hidden_size=dim,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * dim,
            max_position_embeddings=rows,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        )
    )
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):  # the default weights hardly change the outputs
                module.weight.mul_(4.0)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_tiny_data(folder: Path, dynamics: Path) -> None:
    """Write a model, and data and a config file for each task, unless the folder exists.

    Args:
        folder: folder to write.
        dynamics: run folder of the dynamics that the tasks start from; dynamics.yaml trains them.
    """
    if folder.exists():
        return
    texts = {split: generate(_LINES, split, "en", "en")[0] for split in _SPLITS}
    with new_folder(folder) as temporary:
        numbers = " ".join(spell(number, "en") for number in range(_MAX_NUMBER + 1))
        write_model(
            temporary / "model",
            learned_tokenizer([*texts["train"], numbers, _QUESTION.format("one")]),
            dim=32,
        )
        for split, lines in texts.items():
            write_text(temporary / f"{split}.txt", _join_lines(lines))
        for name, (settings, suffix, generate_examples) in _TASKS.items():
            files = {}
            for split, count in (("train", TRAIN), ("valid", VALID)):
                file = f"{name}.{split}.{suffix}"
                examples = generate_examples(random.Random(f"{name} {split}"), count)
                write_text(temporary / file, examples)
                files[split] = [str(folder / file)] if suffix == "jsonl" else str(folder / file)
            shared = {
                "model": {"name": str(folder / "model"), "dropout": 0.0},
                "dynamics": str(dynamics),
                "data": files,
            }
            write_text(temporary / f"{name}.yaml", to_yaml(merge(merge(shared, _SHARED), settings)))
        write_text(temporary / "dynamics.yaml", to_yaml(_dynamics_settings(folder)))


_SPLITS: tuple[Literal["train", "valid"], ...] = ("train", "valid")
_PACE = {"batch": 32, "lr": 0.003, "weight_decay": 0.0, "log_every": 10, "threads": 1}
_SHARED: dict[str, Any] = {
    "max_length": 64,
    "training": {**_PACE, "updates": 150, "evaluate_every": 75, "save_every": 50},
    "compare": {"draws": 500},
}


def _dynamics_settings(folder: Path) -> dict[str, Any]:
    return {
        "task": "masked_lm",
        "model": {"name": str(folder / "model"), "dropout": 0.0},
        "data": {split: [str(folder / f"{split}.txt")] for split in _SPLITS},
        "max_length": 64,
        "training": {
            **_PACE,
            "part": "flow",
            "updates": 20,
            "evaluate_every": 20,
            "save_every": 10,
        },
    }


def _numbers(draw: random.Random, count: int) -> list[str]:
    return [spell(number, "en") for number in draw.sample(range(_MAX_NUMBER + 1), count)]


def _rising(draw: random.Random, count: int) -> str:
    """Like CoLA: a list is acceptable if its numbers increase."""
    rows = []
    for _ in range(count):
        numbers = draw.sample(range(_MAX_NUMBER + 1), 4)
        if draw.random() < 0.5:
            numbers.sort()
        sentence = "; ".join(spell(number, "en") for number in numbers)
        rows.append(f"made\t{int(numbers == sorted(numbers))}\t\t{sentence}")
    return _join_lines(rows)


def _dated(draw: random.Random, count: int) -> str:
    """Like SST-2: does the list contain a date?"""
    config = _LINES.model_copy(
        update={"seed": draw.randrange(1 << 30), "train": Lines(pairs=count, longest=3)}
    )
    # a comma follows every weekday, and no other word that ends in "day"
    rows = [f"{line}\t{int('day,' in line)}" for line in generate(config, "train", "en", "en")[0]]
    return _join_lines(["sentence\tlabel", *rows])


def _shared(draw: random.Random, count: int) -> str:
    """Like STS-B: how many of five numbers do two lists share?"""
    rows = []
    for number in range(count):
        pool = _numbers(draw, 10)
        common = draw.randint(0, 5)
        first, second = pool[:5], [*pool[:common], *pool[5 : 10 - common]]
        draw.shuffle(second)
        rows.append(f"{number}\t{'; '.join(first)}\t{'; '.join(second)}\t{common:.3f}")
    return _join_lines(["index\tsentence1\tsentence2\tscore", *rows])


def _same(draw: random.Random, count: int) -> str:
    """Like RTE: are both numbers the same?"""
    rows = []
    for number in range(count):
        first, second = _numbers(draw, 2)
        same = draw.random() < 0.5
        label = "entailment" if same else "not_entailment"
        rows.append(f"{number}\t{first}\t{first if same else second}\t{label}")
    return _join_lines(["index\tsentence1\tsentence2\tlabel", *rows])


def _next(draw: random.Random, count: int, *, impossible: bool = False) -> str:
    """Like SQuAD: which number of a list follows another one?

    Args:
        draw: source of random numbers.
        count: number of questions.
        impossible: as in version 2.0, a third of the questions are about a number that is not in
            the list.
    """
    paragraphs = []
    for number in range(count):
        *listed, absent = _numbers(draw, draw.randint(4, 9))
        index = draw.randrange(1, len(listed))
        answers = [{"text": listed[index], "answer_start": len("; ".join([*listed[:index], ""]))}]
        entry: dict[str, Any] = {
            "id": f"q{number}",
            "question": _QUESTION.format(listed[index - 1]),
            "answers": answers,
        }
        if impossible:
            entry["is_impossible"] = draw.random() < 1 / 3
            if entry["is_impossible"]:
                entry |= {"question": _QUESTION.format(absent), "answers": []}
        paragraphs.append({"context": "; ".join(listed), "qas": [entry]})
    articles = [{"title": "lists of numbers", "paragraphs": paragraphs}]
    return json.dumps({"version": "made", "data": articles}) + "\n"


def _next_or_not(draw: random.Random, count: int) -> str:
    """Like SQuAD 2.0."""
    return _next(draw, count, impossible=True)


def _choice(draw: random.Random, count: int) -> str:
    """Like RACE: which of four numbers follows another one in a list?"""
    rows = []
    for number in range(count):
        level = ("middle", "high")[number % 2]
        listed = _numbers(draw, draw.randint(5, 6) if level == "middle" else draw.randint(7, 9))
        index = draw.randrange(1, len(listed))
        others = [item for i, item in enumerate(listed) if i not in (index - 1, index)]
        options = [listed[index], *draw.sample(others, OPTIONS - 1)]
        draw.shuffle(options)
        entry = {
            "id": f"{level}{number}.txt",
            "article": "; ".join(listed),
            "questions": [_QUESTION.format(listed[index - 1])],
            "options": [options],
            "answers": [LETTERS[options.index(listed[index])]],
        }
        rows.append(json.dumps(entry))
    return _join_lines(rows)


def _join_lines(rows: Sequence[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


_WINDOWS = {"stride": 8, "max_question": 16}
_TASKS: dict[str, tuple[dict[str, Any], str, Callable[[random.Random, int], str]]] = {
    "cola": ({"task": "glue", "data": {"name": "cola"}}, "tsv", _rising),
    "sst2": ({"task": "glue", "data": {"name": "sst2"}}, "tsv", _dated),
    "stsb": ({"task": "glue", "data": {"name": "stsb"}}, "tsv", _shared),
    "rte": ({"task": "glue", "data": {"name": "rte"}}, "tsv", _same),
    "squad": ({"task": "squad", "data": _WINDOWS}, "json", _next),
    "squad-v2": ({"task": "squad", "data": _WINDOWS}, "json", _next_or_not),
    "race": ({"task": "race"}, "jsonl", _choice),
}
"""Settings, file suffix and generator of each task, by the name of its config."""
