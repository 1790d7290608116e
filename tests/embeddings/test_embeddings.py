"""Embeddings of long documents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, BartConfig, GPT2Config

from command_line import mistake, said
from floater.errors import ConfigError, DataError
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder
from floater.tasks import task_from
from floater.tasks.embeddings.classes import class_ranks
from floater.tasks.embeddings.config import EmbeddingsConfig
from floater.tasks.embeddings.halves import DocumentTexts, HalfInputs, half_inputs, read
from floater.tasks.embeddings.task import EmbeddingsTask
from floater.tasks.padding import PadRight
from floater.training.run import run
from floater.training.world import ALONE
from understanding.worlds import WORDS, tokenizer, write_model

PAD = 1


def write_documents(path: Path, count: int, seed: int = 0, words: int = 60) -> Path:
    """Documents whose first half has two favourite words, and whose second half has two others that
    belong to these.
    """
    draw, half = random.Random(seed), len(WORDS) // 2
    lines = []
    for _ in range(count):
        favourites = draw.sample(range(half), 2)
        parts = [
            " ".join(WORDS[draw.choice(favourites) + shift] for _ in range(words))
            for shift in (0, half)
        ]
        lines.append(json.dumps({"parts": parts}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    write_model(tmp_path / "bert", "bert")
    return {
        "task": "embeddings",
        "model": {"name": str(tmp_path / "bert"), "dropout": 0},
        "data": {
            "train": [str(write_documents(tmp_path / "train.jsonl", 12))],
            "valid": [str(write_documents(tmp_path / "valid.jsonl", 9, seed=1))],
            "text": "parts",
        },
        "max_length": 24,
        "valid_length": 100,
        "window": 40,
        "positions": {
            "encoder": {"kind": "table", "factor": 2.0},
            "sites": "table",
            "jitter": {"gaps": 1, "until": 100},
        },
        "training": {"batch": 4, "updates": 2, "threads": 1},
        "compare": {"seeds": [0], "draws": 50},
    }


def task(settings: dict[str, Any], **changes: Any) -> EmbeddingsTask:
    built = task_from({**settings, **changes})
    assert isinstance(built, EmbeddingsTask)
    return built


def inputs(length: int, windows: int, seed: int | None = None) -> HalfInputs:
    documents = [np.arange(10, 10 + size) for size in (9, 30)]
    return HalfInputs(documents, tokenizer(), length, windows, seed)


def test_halves_begin_at_their_beginnings() -> None:
    before, after = [0], [2]  # special tokens of the tokenizer
    first, second = inputs(8, 1)[0]["input_ids"]  # type: ignore[misc]
    assert first == [*before, 10, 11, 12, 13, *after]
    assert second == [*before, 14, 15, 16, 17, 18, *after]
    assert inputs(8, 1).lengths().tolist() == [7, 8]


def test_windows_follow_one_another_and_may_be_empty() -> None:
    item = inputs(8, 3)[1]
    rows, masks = item["input_ids"], item["attention_mask"]
    assert isinstance(rows, list)
    assert isinstance(masks, list)
    assert [row[1:-1] for row in rows[:3]] == [[*range(10, 16)], [*range(16, 22)], [22, 23, 24]]
    assert [row[1:-1] for row in rows[3:]] == [[*range(25, 31)], [*range(31, 37)], [37, 38, 39]]
    assert all(map(all, masks))
    short = inputs(8, 3)[0]["attention_mask"]
    assert [any(mask) for mask in short] == [True, False, False] * 2  # type: ignore[union-attr]


def test_random_windows_depend_on_seed_and_epoch() -> None:
    def drawn(seed: int, epoch: int) -> Any:
        features = inputs(8, 1, seed)
        features.set_epoch(epoch)
        return features[1]["input_ids"]

    assert drawn(0, 0) == drawn(0, 0)
    assert len({str(drawn(seed, epoch)) for seed in range(3) for epoch in range(3)}) > 4
    for epoch in range(20):
        first, second = drawn(0, epoch)
        assert set(first[1:-1]) <= set(range(10, 25))
        assert set(second[1:-1]) <= set(range(25, 40))
        assert len(first) == len(second) == 8


def embed(model: nn.Module, rows: list[list[int]]) -> Tensor:
    """The mean of the last hidden states of rows, one by one."""
    return torch.stack([model(input_ids=torch.tensor([row]))[0][0].mean(0) for row in rows])


@pytest.mark.parametrize("reading", ["whole", "truncate", "windows"])
def test_long_inputs_are_read_as_the_config_says(reading: str, settings: dict[str, Any]) -> None:
    untouched = {"positions": {"encoder": None}, "training": {"part": "nothing"}}
    problem = task(settings, reading=reading, valid_length=60, **untouched)
    model = AutoModel.from_pretrained(settings["model"]["name"]).eval()
    split = problem.splits()["valid"]
    features = problem.encode(split, tokenizer(), training=False)
    examples = [features[0], features[1]]
    batch = PadRight(PAD)(examples)
    with torch.no_grad():
        found = problem.predict(model, batch)
        for number, example in enumerate(examples):
            windows = example["input_ids"]
            assert isinstance(windows, list)
            count = len(windows) // 2
            assert count == (2 if reading == "windows" else 1)
            read_tokens = [token for row in windows[:count] for token in row[1:-1] if len(row) > 2]
            assert len(read_tokens) == {"whole": 58, "truncate": 38, "windows": 58}[reading]
            for name, own in (("first", windows[:count]), ("second", windows[count:])):
                weights = torch.tensor([float(len(row)) for row in own])[:, None]
                expected = F.normalize((weights * embed(model, own)).sum(0), dim=0)
                torch.testing.assert_close(found[name][number], expected, rtol=1e-4, atol=1e-5)
            longest = {"whole": 60, "truncate": 40, "windows": 40}[reading]
            assert max(map(len, windows)) == longest


@pytest.mark.parametrize("reading", ["whole", "truncate", "windows"])
def test_a_test_set_may_be_read_less_far(reading: str, settings: dict[str, Any]) -> None:
    again = {"files": settings["data"]["valid"]}
    data = {**settings["data"], "more": {"less": {**again, "valid_length": 50}, "same": again}}
    far = task(settings, reading=reading, data=data)
    near = task(settings, reading=reading, valid_length=50)
    splits = far.splits()
    features = {name: far.encode(splits[name], tokenizer(), training=False) for name in splits}
    expected = near.encode(near.splits()["valid"], tokenizer(), training=False)
    assert features["less"].lengths().tolist() == expected.lengths().tolist()
    for number in range(len(expected)):
        rows = [row for row in features["less"][number]["input_ids"] if len(row) > 2]  # type: ignore[union-attr]
        assert rows == [row for row in expected[number]["input_ids"] if len(row) > 2]  # type: ignore[union-attr]
        assert features["same"][number] == features["valid"][number]
    assert "50 tokens" in far.signature("accuracy", splits["less"])
    assert "100 tokens" in far.signature("accuracy", splits["same"])
    assert splits["less"].fingerprint() == {**splits["same"].fingerprint(), "read": 50}
    data["more"]["less"]["valid_length"] = 101
    with pytest.raises(ConfigError, match=r"`valid_length` of `less` must be at most .* 100, but"):
        task(settings, data=data)


def test_the_loss_compares_with_the_other_documents(settings: dict[str, Any]) -> None:
    problem = task(settings, positions={"encoder": None}, training={"part": "nothing"})
    model = AutoModel.from_pretrained(settings["model"]["name"]).eval()
    features = problem.encode(problem.splits()["train"], tokenizer(), training=True)
    examples = [features[number] for number in range(3)]
    with torch.no_grad():
        found = problem.loss(model, PadRight(PAD)(examples))
        vectors = [
            F.normalize(embed(model, [example["input_ids"][half] for example in examples]), dim=1)  # type: ignore[index]
            for half in (0, 1)
        ]
    expected = 0.0
    for queries, keys in (vectors, vectors[::-1]):
        for number, query in enumerate(queries):
            logits = [float(query @ key) / 0.05 for key in keys]
            expected -= (logits[number] - float(np.logaddexp.reduce(logits))) / 2
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_ranks_count_ties_against_the_right_document(settings: dict[str, Any]) -> None:
    problem = task(settings)
    split = problem.splits()["valid"]
    features = problem.encode(split, tokenizer(), training=False)
    first = np.eye(3)
    second = np.array([[1.0, 0, 0], [0, 0.5, 0.5], [0.6, 0.5, 0.4]])
    judged = problem.judge(split, features, {"first": first, "second": second})
    assert judged.values == [1, 2, 3]
    scores = problem.scores(judged.table)
    assert scores["accuracy"] == pytest.approx(100 / 3)
    assert scores["mrr"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3)
    once = np.ones((1, 3))
    for name, measure in problem.measures.items():
        assert measure(judged.table, once)[0] == pytest.approx(scores[name])


def test_a_comparison_with_truncation_windows_and_fixed_scalings(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "posts.yaml").write_text(yaml.safe_dump(settings))
    said(monkeypatch, capsys, "compare", tmp_path / "posts.yaml", "--out", tmp_path / "runs")
    compared = Comparison.from_file(tmp_path / "runs" / "posts" / COMPARISON)
    assert compared.base == "truncate"
    variants = {row.variant for row in compared.rows}
    scalings = {"cycle", "group", "hierarchy", "linear", "waves"}
    assert variants == {"windows", *scalings, "floater"}
    trained = tmp_path / "runs" / "posts" / "floater-0"
    output = said(monkeypatch, capsys, "evaluate", trained, "--data", settings["data"]["train"][0])
    assert "accuracy" in output


def test_training_makes_halves_find_each_other(settings: dict[str, Any], tmp_path: Path) -> None:
    training = {"batch": 12, "updates": 40, "lr": 0.01, "part": "all", "threads": 1, "warmup": 0.0}
    data = {**settings["data"], "valid": settings["data"]["train"]}
    config = {**settings, "training": training, "data": data}
    (tmp_path / "posts.yaml").write_text(yaml.safe_dump(config))
    problem = task(config)
    folder = run(problem, tmp_path / "run")
    scores = folder.scores().sets["valid"].scores
    untrained = run(task(config, training={"part": "nothing"}), tmp_path / "nothing")
    before = untrained.scores().sets["valid"].scores
    assert scores["mrr"].score > before["mrr"].score + 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a b"}', "must have `parts`, but has text"),
        ('{"parts": 3}', "must be text or a list of texts, but is 3"),
        ('{"parts": ["a", 3]}', "entry 2 of `parts` must be text, but is 3"),
        ("{", "must be JSON"),
    ],
)
def test_bad_lines_are_named(
    line: str,
    message: str,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(settings["data"]["train"][0])
    path.write_text(path.read_text() + line + "\n")
    (tmp_path / "posts.yaml").write_text(yaml.safe_dump(settings))
    command = ["train", tmp_path / "posts.yaml", "--out", tmp_path / "run"]
    told = mistake(monkeypatch, capsys, *command)
    assert message in told
    assert "train.jsonl, line 13" in told


def test_documents_may_be_lines_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n\nthree four\n")
    assert read((tmp_path / "a.txt",), "text").texts == ["one two", "three four"]


def test_too_few_long_documents_are_refused(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "a.jsonl", 3)
    with pytest.raises(DataError, match="at least two documents of 900 tokens, but 0 are used"):
        half_inputs(
            read((path,), "parts"),
            tokenizer(),
            24,
            windows=1,
            shortest=900,
            most=None,
            seed=None,
        )


def test_a_window_longer_than_what_is_read_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`window` must be at most `valid_length`, 100"):
        task(settings, reading="windows", window=200)


def test_files_are_a_list(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`valid` of EmbeddingData: input should be a list, but"):
        task(settings, data={**settings["data"], "valid": {"files": "path"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid_length": 200}, "must have positions for 200 tokens .*, but has 132"),
        ({"reading": "windows", "window": 80, "positions": {}}, "for 80 tokens .*, but has 66"),
        ({"valid_length": 80, "positions": {}}, "for 80 tokens .*, but has 66"),
        ({"max_length": 140}, r"for 140 tokens \(`max_length`\), but has 132"),
    ],
)
def test_inputs_without_positions_are_refused_before_training(
    changes: dict[str, Any], message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(task(settings, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_models_without_an_embedding_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    BartConfig().save_pretrained(tmp_path / "bart")
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    for name, changes, message in (
        ("bart", {}, "encoder-decoder"),
        ("gpt2", {"pooling": "first"}, "`pooling` must be mean"),
    ):
        model = {"name": str(tmp_path / name)}
        with pytest.raises(ConfigError, match=message):
            run(task(settings, model=model, **changes), tmp_path / "run")


@pytest.mark.parametrize("limit", ["max_train", "max_valid"])
def test_one_document_is_not_enough(limit: str, settings: dict[str, Any], tmp_path: Path) -> None:
    data = {**settings["data"], limit: 1}
    with pytest.raises(DataError, match="at least two documents of 64 tokens, but 1 is used"):
        run(task(settings, data=data), tmp_path / "run")


# Test sets with classes ---------------------------------------------------------------------------


def write_classes(path: Path, count: int = 40) -> Path:
    """Documents of two classes with a favourite word each, in four parts."""
    draw = random.Random(5)
    lines = []
    for number in range(count):
        name = number % 2
        words = [WORDS[draw.choice([name, name, 2 + draw.randrange(8)])] for _ in range(70)]
        entry = {"body": [" ".join(words)], "kind": f"class {name}", "part": number // 2 % 4}
        lines.append(json.dumps(entry))
    path.write_text("\n".join(lines) + "\n")
    return path


def with_classes(settings: dict[str, Any], path: Path, **changes: Any) -> dict[str, Any]:
    own = {"files": [str(path)], "text": "body", "label": "kind", **changes}
    return {**settings["data"], "more": {"kinds": own}}


@pytest.mark.parametrize("reading", ["whole", "truncate", "windows"])
@pytest.mark.parametrize("fold", [None, "part"])
def test_whole_documents_are_classified(
    reading: str, fold: str | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    data = with_classes(settings, write_classes(tmp_path / "kinds.jsonl"), fold=fold)
    folder = run(
        task(settings, data=data, reading=reading, training={"part": "nothing"}), tmp_path / "run"
    )
    found = folder.scores().sets["kinds"]
    assert found.examples == 40
    assert found.scores["accuracy"].score > 90
    assert folder.scores().sets["valid"].examples == 9


def test_class_ranks_are_those_of_a_classifier_that_has_not_seen_the_part() -> None:
    draw = np.random.default_rng(0)
    labels, folds = [f"c{number % 3}" for number in range(60)], [str(n % 5) for n in range(60)]
    vectors = draw.normal(size=(60, 8))
    vectors[np.arange(60), np.arange(60) % 3] += 2.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    split = DocumentTexts([""] * 60, "here", labels, folds)
    ranks = class_ranks(vectors, split, np.arange(60))
    for part in range(5):
        own = np.arange(60) % 5 == part
        model = LogisticRegression(C=10.0, max_iter=1000)
        model.fit(vectors[~own], np.array(labels)[~own])
        right = model.predict(vectors[own]) == np.array(labels)[own]
        assert (right == (ranks[own] == 1)).all()
    assert 0 < (ranks == 1).mean() < 1
    # classes that mean nothing cannot be found
    shuffled = DocumentTexts([""] * 60, "here", list(draw.permutation(labels)), folds)
    assert (class_ranks(vectors, shuffled, np.arange(60)) == 1).mean() < 0.6


def test_a_class_that_occurs_once_is_never_found() -> None:
    labels = ["a", "b"] * 10 + ["once"]
    vectors = np.tile(np.eye(2), (10, 1))
    vectors = np.concatenate([vectors, [[1.0, 0.0]]])
    ranks = class_ranks(vectors, DocumentTexts([""] * 21, "here", labels), np.arange(21))
    assert (ranks[:20] == 1).all()
    assert ranks[20] == 3


def test_classes_of_short_documents_are_left_out_with_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = write_classes(tmp_path / "kinds.jsonl")
    path.write_text(
        json.dumps({"body": "short", "kind": "other", "part": 0}) + "\n" + path.read_text()
    )
    data = with_classes(settings, path, min_tokens=20)
    problem = task(settings, data=data)
    split = problem.splits()["kinds"]
    features = problem.encode(split, tokenizer(), training=False)
    assert features.numbers.tolist() == list(range(1, 41))
    assert len(features) == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None, "fold": "part"}, "`fold` needs a `label`"),
        ({"label": "sort"}, "must have `sort`"),
        ({"label": "body"}, "`body` must be a name or a whole number"),
        ({"label": "weight"}, "`weight` must be a name or a whole number, but is 0.5"),
        ({"min_tokens": 900}, "at least two documents of 900 tokens, but 0 are used"),
        ({"label": "rare"}, "of two classes outside of each part .* all 36 that are used"),
        ({"label": "kind", "fold": "kind"}, "without the part .* are of the class"),
        ({"fold": "one"}, "at least two values of `one`, but has 1"),
        ({"files": ["notes.txt"]}, "must be JSON lines to have `kind`"),
    ],
)
def test_bad_classes_are_named(
    changes: dict[str, Any], message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = write_classes(tmp_path / "kinds.jsonl")
    lines = [
        {**json.loads(line), "one": 1, "weight": 0.5, "rare": int(number == 3)}
        for number, line in enumerate(path.read_text().splitlines())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "notes.txt").write_text("some text\nmore text\n")
    if "files" in changes:
        changes = {"files": [str(tmp_path / "notes.txt")]}
    with pytest.raises((ConfigError, DataError), match=message):
        run(task(settings, data=with_classes(settings, path, **changes)), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # nothing was trained


def test_runs_that_read_other_lengths_are_not_compared(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for length in (100, 60):
        run(task(settings, valid_length=length, window=40), tmp_path / str(length))
    told = mistake(monkeypatch, capsys, "evaluate", tmp_path / "100", "--against", tmp_path / "60")
    assert "mean the same" in told
    assert "60 tokens of each half" in told


# Variants -----------------------------------------------------------------------------------------


def test_the_trained_base_is_a_variant_if_all_weights_are_trained(settings: dict[str, Any]) -> None:
    training = {**settings["training"], "part": "all"}
    problem = task(settings, training=training, compare_windows=[20])
    variants = problem.variants(0)
    assert list(variants)[:5] == [
        "truncate",
        "windows",
        "truncate-20",
        "windows-20",
        "trained-windows",
    ]
    control = variants["trained-windows"].config
    assert isinstance(control, EmbeddingsConfig)
    assert control.positions.encoder is None
    assert (control.reading, control.window, control.training.part) == ("windows", 40, "all")
    assert "trained-windows" not in task(settings).variants(0)
    with pytest.raises(ConfigError, match="`compare_windows` must be at most `valid_length`, 100"):
        task(settings, compare_windows=[101, 20])


def test_only_chosen_variants_are_compared(settings: dict[str, Any], tmp_path: Path) -> None:
    chosen = {"seeds": [0], "draws": 50, "only": ["linear", "truncate"]}
    problem = task(settings, compare=chosen)
    assert list(problem.variants(0)) == ["truncate", "linear"]
    with pytest.raises(ConfigError, match="`only` must be different names, but are a, a"):
        task(settings, compare={**chosen, "only": ["a", "a"]})
    with pytest.raises(
        ConfigError, match=r"`only` of `compare` must name some of truncate, .*line'"
    ):
        task(settings, compare={**chosen, "only": ["line", "truncate"]}).variants(0)


def test_half_precision_holds_in_evaluation_too(settings: dict[str, Any], tmp_path: Path) -> None:
    seen = []

    def note(module: Any, args: Any, output: Any) -> None:
        seen.append(output.dtype)

    for precision in ("float32", "bf16"):
        training = {"part": "nothing", "precision": precision}
        problem = task(settings, training=training)
        data = problem.prepare(RunFolder(tmp_path))
        model: Any = problem.build_model(data).eval()
        model.encoder.layer[0].intermediate.dense.register_forward_hook(note)
        problem.measure(model, data, ALONE)
    assert set(seen) == {torch.float32, torch.bfloat16}
