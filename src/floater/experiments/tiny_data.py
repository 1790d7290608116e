"""A tiny world of understanding, made in moments: a random RoBERTa, its tokenizer, and questions
with right answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TRAIN, VALID = 1600, 300
"""Examples of each part."""
_LARGEST = 99
_LINES = Embedded(
    train=Lines(pairs=600), valid=Lines(pairs=100), test=Lines(pairs=1), largest=_LARGEST
)
_AFTER = "which number comes after {}?"


def learned_tokenizer(lines: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words that frames sentences as RoBERTa does; it knows the words of some
    lines.
    """
    words = Tokenizer(WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator(
        lines, WordLevelTrainer(special_tokens=list(SPECIAL), show_progress=False)
    )
    words.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
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
    words: PreTrainedTokenizerFast,
    make: Any = RobertaForMaskedLM,
    config: Any = RobertaConfig,
    *,
    dim: int = 32,
    rows: int = 130,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A model of two blocks with random weights that are large enough to matter, and its tokenizer;
    always the same one.

    Args:
        folder: where to.
        words: its tokenizer.
        make: class of the model.
        config: class of its config.
        dim: width.
        rows: of its position table.
        dtype: of the weights as written.
    """
    torch.manual_seed(0)
    model = make(
        config(
            vocab_size=len(words),
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
            if isinstance(module, nn.Linear):
                module.weight.mul_(4.0)
    model.to(dtype).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def write_world(folder: Path, law: Path) -> None:
    """Model, data and a config for each task, all in one folder, unless they are there.

    Args:
        folder: where to; config NAME is NAME.yaml in it.
        law: where the dynamics that the tasks start from is to be trained, by law.yaml.
    """
    if folder.exists():
        return
    texts = {part: generate(_LINES, part, "en", "en")[0] for part in ("train", "valid")}
    with new_folder(folder) as place:
        numbers = " ".join(spell(number, "en") for number in range(_LARGEST + 1))
        write_model(
            place / "model",
            learned_tokenizer([*texts["train"], numbers, _AFTER.format("one")]),
            dim=32,
        )
        for part, lines in texts.items():
            write_text(place / f"{part}.txt", "".join(f"{line}\n" for line in lines))
        for name, (settings, suffix, made) in _TASKS.items():
            files = {}
            for part, count in (("train", TRAIN), ("valid", VALID)):
                file = f"{name}.{part}.{suffix}"
                write_text(place / file, made(random.Random(f"{name} {part}"), count))
                files[part] = [str(folder / file)] if suffix == "jsonl" else str(folder / file)
            shared = {
                "model": {"name": str(folder / "model"), "dropout": 0.0},
                "dynamics": str(law),
                "data": files,
            }
            write_text(place / f"{name}.yaml", to_yaml(merge(merge(shared, _SHARED), settings)))
        write_text(place / "law.yaml", to_yaml(_law(folder)))


_PACE = {"batch": 32, "lr": 0.003, "weight_decay": 0.0, "log_every": 10, "threads": 1}
_SHARED: dict[str, Any] = {
    "max_length": 64,
    "training": {**_PACE, "updates": 150, "evaluate_every": 75, "save_every": 50},
    "compare": {"draws": 500},
}


def _law(folder: Path) -> dict[str, Any]:
    return {
        "task": "masked_lm",
        "model": {"name": str(folder / "model"), "dropout": 0.0},
        "data": {part: [str(folder / f"{part}.txt")] for part in ("train", "valid")},
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
    return [spell(number, "en") for number in draw.sample(range(_LARGEST + 1), count)]


def _rising(draw: random.Random, count: int) -> str:
    """As CoLA: a list is acceptable if its numbers rise."""
    rows = []
    for _ in range(count):
        numbers = draw.sample(range(_LARGEST + 1), 4)
        if draw.random() < 0.5:
            numbers.sort()
        words = "; ".join(spell(number, "en") for number in numbers)
        rows.append(f"made\t{int(numbers == sorted(numbers))}\t\t{words}")
    return _lines(rows)


def _dated(draw: random.Random, count: int) -> str:
    """As SST-2: is there a date in the list?"""
    config = _LINES.model_copy(
        update={"seed": draw.randrange(1 << 30), "train": Lines(pairs=count, longest=3)}
    )
    # every weekday is followed by a comma, and no other word ends so
    rows = [f"{line}\t{int('day,' in line)}" for line in generate(config, "train", "en", "en")[0]]
    return _lines(["sentence\tlabel", *rows])


def _shared(draw: random.Random, count: int) -> str:
    """As STS-B: how many of five numbers are in both lists?"""
    rows = []
    for number in range(count):
        pool = _numbers(draw, 10)
        common = draw.randint(0, 5)
        one, other = pool[:5], [*pool[:common], *pool[5 : 10 - common]]
        draw.shuffle(other)
        rows.append(f"{number}\t{'; '.join(one)}\t{'; '.join(other)}\t{common:.3f}")
    return _lines(["index\tsentence1\tsentence2\tscore", *rows])


def _same(draw: random.Random, count: int) -> str:
    """As RTE: are both the same number?"""
    rows = []
    for number in range(count):
        one, other = _numbers(draw, 2)
        same = draw.random() < 0.5
        rows.append(
            f"{number}\t{one}\t{one if same else other}\t"
            f"{'entailment' if same else 'not_entailment'}"
        )
    return _lines(["index\tsentence1\tsentence2\tlabel", *rows])


def _next(draw: random.Random, count: int, *, impossible: bool = False) -> str:
    """As SQuAD: which number of a list comes after another? In version 2.0, a third of these are
    not in the list.
    """
    paragraphs = []
    for number in range(count):
        *listed, stranger = _numbers(draw, draw.randint(4, 9))
        place = draw.randrange(1, len(listed))
        answers = [{"text": listed[place], "answer_start": len("; ".join([*listed[:place], ""]))}]
        entry: dict[str, Any] = {
            "id": f"q{number}",
            "question": _AFTER.format(listed[place - 1]),
            "answers": answers,
        }
        if impossible:
            entry["is_impossible"] = draw.random() < 1 / 3
            if entry["is_impossible"]:
                entry |= {"question": _AFTER.format(stranger), "answers": []}
        paragraphs.append({"context": "; ".join(listed), "qas": [entry]})
    return (
        json.dumps(
            {"version": "made", "data": [{"title": "lists of numbers", "paragraphs": paragraphs}]}
        )
        + "\n"
    )


def _next_or_not(draw: random.Random, count: int) -> str:
    """As SQuAD 2.0."""
    return _next(draw, count, impossible=True)


def _choice(draw: random.Random, count: int) -> str:
    """As RACE: which number comes after another, out of four of the list? Lists of the level high
    are longer.
    """
    rows = []
    for number in range(count):
        level = ("middle", "high")[number % 2]
        listed = _numbers(draw, draw.randint(5, 6) if level == "middle" else draw.randint(7, 9))
        place = draw.randrange(1, len(listed))
        others = [item for nth, item in enumerate(listed) if nth not in (place - 1, place)]
        options = [listed[place], *draw.sample(others, OPTIONS - 1)]
        draw.shuffle(options)
        entry = {
            "id": f"{level}{number}.txt",
            "article": "; ".join(listed),
            "questions": [_AFTER.format(listed[place - 1])],
            "options": [options],
            "answers": [LETTERS[options.index(listed[place])]],
        }
        rows.append(json.dumps(entry))
    return _lines(rows)


def _lines(rows: Sequence[str]) -> str:
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
"""Settings, kind of file and data of each task, by the name of its config."""
