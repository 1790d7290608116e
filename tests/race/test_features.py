from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMultipleChoice

from floater.errors import ArgumentError
from floater.recipes import DEFAULTS
from floater.tasks.padding import PadRight
from floater.tasks.race.data import RaceQuestion, read
from floater.tasks.race.features import features, statement
from tiny_tokenizers import KINDS, TEXT, tiny

QUESTIONS = [
    RaceQuestion(
        "high1.txt/0",
        "high",
        " ".join(TEXT),
        "The café is in _ .",
        ("Málaga", "France", "West Francia", "Normandy"),
        0,
    ),
    RaceQuestion(
        "high1.txt/1",
        "high",
        " ".join(TEXT),
        "Who swore?",
        ("Rollo.", "Zoë.", "King Charles III of West Francia.", "They."),
        0,
    ),
    RaceQuestion(
        "middle1.txt/0",
        "middle",
        TEXT[1],
        "Rollo swore in",
        ("911", "1999", "the 10th", "the 11th"),
        3,
    ),
]


@pytest.mark.parametrize(
    ("question", "option", "expected"),
    [
        ("Tom has a  _  .", "big cat", "Tom has a big cat ."),
        ("Tom has a ____.", "cat", "Tom has a cat."),
        ("What does\nTom have?", "A cat.", "What does Tom have? A cat."),
        ("Tom is _ and Joy is _ .", "five; eleven", "Tom is five and Joy is eleven ."),
        ("Tom is _ and Joy is _ .", "eleven;", "Tom is _ and Joy is _ . eleven;"),
        ("Tom is _ and Joy is _ .", "five", "Tom is _ and Joy is _ . five"),
        ("Tom has _ .", "a cat; a dog", "Tom has a cat; a dog ."),
        (r"It costs _ .", r"\1 or \g<0>", r"It costs \1 or \g<0> ."),
        ("Is it _ ?", "", "Is it _ ?"),
    ],
)
def test_the_option_fills_the_blank_or_follows_the_question(
    question: str, option: str, expected: str
) -> None:
    assert statement(question, option) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_length", [60, 90, 400])
def test_inputs_equal_those_of_transformers_with_truncated_articles(
    kind: str, max_length: int
) -> None:
    tokenizer = tiny(kind)
    examples = features(QUESTIONS, tokenizer, max_length)
    cut = 0
    for number, question in enumerate(QUESTIONS):
        example = examples[number]
        statements = [statement(question.text, option) for option in question.options]
        expected = tokenizer(
            [question.article] * 4, statements, truncation="only_first", max_length=max_length
        )
        assert example.pop("labels") == question.answer
        assert example.keys() == set(tokenizer.model_input_names)
        assert all(example[key] == expected[key] for key in example)
        longest = max(map(len, expected["input_ids"]))
        assert examples.lengths()[number] == longest
        whole = tokenizer([question.article] * 4, statements)["input_ids"]
        cut += max(map(len, whole)) > longest
        rows = example["input_ids"]
        assert isinstance(rows, list)
        for row, text in zip(rows, statements, strict=True):
            tail = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert row[-len(tail) - 1 : -1] == tail  # question and option stay whole
    assert examples.cut() == pytest.approx(cut / 3)
    assert (cut > 0) == (max_length < 400)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_accepts_four_padded_rows_per_question(kind: str) -> None:
    tokenizer = tiny(kind)
    examples = features(QUESTIONS, tokenizer, 90)
    batch = PadRight(tokenizer.pad_token_id)([examples[number] for number in range(3)])
    width = examples.lengths().max()
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 4, width)
    assert batch["labels"].tolist() == [0, 0, 3]
    rows = examples[2]["input_ids"]
    assert isinstance(rows, list)
    assert batch["attention_mask"][2].sum(1).tolist() == [len(row) for row in rows]
    assert batch["input_ids"][2, 3].tolist() == [
        *rows[3],
        *[tokenizer.pad_token_id] * (width - len(rows[3])),
    ]
    model = BertForMultipleChoice(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    output = model(**batch)
    assert output.logits.shape == (3, 4)
    assert torch.isfinite(output.loss)


def test_a_length_without_room_for_the_article_is_refused() -> None:
    tokenizer = tiny("bert")
    size = len(
        tokenizer(statement(QUESTIONS[1].text, QUESTIONS[1].options[2]), add_special_tokens=False)[
            "input_ids"
        ]
    )
    assert len(features(QUESTIONS, tokenizer, size + 4)) == 3
    with pytest.raises(
        ArgumentError,
        match=(
            rf"`max_length` must be at least {size + 4}, but is {size + 3}: question high1\.txt/1"
            rf" has {size}"
        ),
    ):
        features(QUESTIONS, tokenizer, size + 3)


def test_the_real_files_fit() -> None:
    folder = Path(os.environ.get("FLOATER_DATA") or DEFAULTS["FLOATER_DATA"]) / "race"
    if not folder.exists():
        pytest.skip(f"no {folder}; FLOATER_DATA says where data is")
    data = read(folder / "dev.middle.jsonl.gz", folder / "dev.high.jsonl.gz")
    assert len(data) == 1436 + 1669
    assert np.bincount([question.answer for question in data.questions]).tolist() == [
        693,
        802,
        829,
        781,
    ]
    filled = [
        statement(question.text, option)
        for question in data.questions
        for option in question.options
    ]
    assert sum("_" in text for text in filled) < 0.005 * len(filled)
