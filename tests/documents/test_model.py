"""What goes into the model and what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

import floater
from floater.errors import ConfigError, DataError, RunError
from floater.recipes import merge
from floater.tasks.documents.config import DocumentPositions, DocumentsConfig, Places
from floater.tasks.documents.inputs import sentence_times
from floater.tasks.documents.model import DocumentModel
from floater.tasks.documents.pretrained import _recent
from floater.tasks.documents.synthetic import CLASSES, generate
from floater.tasks.documents.task import DocumentsTask
from floater.tasks.understanding.measured import MeasuredData
from floater.tasks.understanding.problem import forward
from tiny_tokenizers import tiny

from .files import write_encoder, write_files

FLOW = {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.5}


def world(folder: Path, **changes: Any) -> tuple[DocumentsTask, MeasuredData, DocumentModel]:
    task = DocumentsTask(DocumentsConfig(**merge(write_files(folder), changes)))
    data = task.prepare(None)  # type: ignore[arg-type]
    torch.manual_seed(1)
    model = task.build_model(data).eval()
    assert isinstance(model, DocumentModel)
    return task, data, model


def sentences(folder: Path, kind: str) -> dict[str, Any]:
    if kind in ("frozen", "trained"):
        name = str(write_encoder(folder / "bert"))
        settings = {"name": name, "trained": kind == "trained", "max_words": 20}
        return {"kind": "pretrained", **settings}
    return {"kind": kind}


def test_the_time_of_a_sentence_is_delta_times_the_tokens_before_it(tmp_path: Path) -> None:
    # "a fine film ." has 4 tokens, "dull ." 2, "who would not like it ?" 6
    settings = write_files(tmp_path)
    lengths = np.array([4, 2, 6, 1])
    config = DocumentsConfig(**settings)
    assert sentence_times(lengths, config, 3.0) == pytest.approx([0, 0.4, 0.6, 1.2])
    even = config.with_positions({"spacing": "equidistant"})
    assert isinstance(even, DocumentsConfig)
    assert sentence_times(lengths, even, 3.0) == pytest.approx([0, 0.3, 0.6, 0.9])
    slow = DocumentsConfig(**merge(settings, {"clock": {"unit": 20, "scale": 1.0}}))
    assert sentence_times(lengths, slow, 3.0) == pytest.approx([0, 0.2, 0.3, 0.6])
    line = {"name": "x", "says": ["a fine film .", "dull .", "who would not like it ?", "dull ."]}
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({**line, "mood": "up"}) + "\n")
    task, data, _ = world(tmp_path)
    inputs = task.encode(task.read(path), data.tokenizer, training=False)
    assert inputs[0]["times"] == pytest.approx([0, 0.4, 0.6, 1.2])


@pytest.mark.parametrize("kind", ["mean", "transformer", "frozen", "trained"])
@pytest.mark.parametrize("sites", ["input", "qkv"])
@torch.no_grad()
def test_a_document_in_a_batch_equals_the_document_alone(
    tmp_path: Path, kind: str, sites: str
) -> None:
    task, data, model = world(
        tmp_path,
        sentences=sentences(tmp_path, kind),
        positions={"encoder": FLOW, "sites": sites},
    )
    collate = task.collate(data.tokenizer)
    items = [data.valid[number] for number in range(len(data.valid))]
    assert len({len(item["times"]) for item in items}) > 1
    together = forward(model, collate(items))
    assert together.std(0).min() > 1e-5
    for number, item in enumerate(items):
        torch.testing.assert_close(
            together[number], forward(model, collate([item]))[0], rtol=0, atol=1e-5
        )


@torch.no_grad()
def test_lengths_matter_on_the_clock_only(tmp_path: Path) -> None:
    outputs: dict[str, torch.Tensor] = {}
    for name in ("lengths", "equidistant", "index"):
        times = {"times": "index"} if name == "index" else {"spacing": name}
        task, data, model = world(
            tmp_path,
            data={"synthetic": {"documents": 40}, "documents": None},
            sentences={"kind": "mean"},
            positions={"encoder": FLOW, **times},
        )
        # the same sentences in the same order, with words repeated
        batch = task.collate(data.tokenizer)([data.valid[0]])
        longer = {**batch, "words": batch["words"].repeat(1, 1, 3)}
        longer["word_mask"] = batch["word_mask"].repeat(1, 1, 3)
        torch.testing.assert_close(forward(model, longer), forward(model, batch))
        outputs[name] = forward(model, batch)
        moved = {**batch, "times": batch["times"] * 1.5}
        assert torch.equal(outputs[name], forward(model, moved)) == (name == "index")
    assert not torch.allclose(outputs["lengths"], outputs["equidistant"])


@torch.no_grad()
def test_without_positions_a_document_is_a_set_of_sentences(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"synthetic": {"documents": 40}, "documents": None}
    for kind in ("none", "sinusoidal"):
        task, data, model = world(tmp_path, data=changes, positions={"encoder": {"kind": kind}})
        item = data.valid[0]
        backwards = {**item, "words": item["words"][::-1]}
        first, second = forward(model, task.collate(data.tokenizer)([item, backwards]))
        assert torch.allclose(first, second, atol=1e-6) == (kind == "none")


@torch.no_grad()
def test_frozen_vectors_are_those_of_the_encoder_itself(tmp_path: Path) -> None:
    _, data, _ = world(tmp_path, sentences=sentences(tmp_path, "frozen"))
    split = data.splits["valid"]
    tokenizer = tiny("bert")
    encoder = AutoModel.from_pretrained(tmp_path / "bert").eval()
    for number, own in enumerate(split.sentences()):
        vectors = data.valid[number]["vectors"]
        assert len(vectors) == len(own)
        for vector, sentence in zip(vectors, own, strict=True):
            inputs = tokenizer(
                sentence,
                return_tensors="pt",
                return_token_type_ids=False,
                truncation=True,
                max_length=20,
            )
            expected = encoder(**inputs).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    # a model that trains the encoder starts with the same vectors
    other, words, model = world(tmp_path / "again", sentences=sentences(tmp_path, "trained"))
    batch = other.collate(words.tokenizer)([words.valid[0]])
    found = model.sentence_vectors(batch["words"][0], batch["word_mask"][0])
    np.testing.assert_allclose(found.numpy(), data.valid[0]["vectors"], atol=1e-5)
    assert np.array_equal(words.valid[0]["times"], data.valid[0]["times"])


def test_frozen_vectors_are_computed_once_and_kept(tmp_path: Path) -> None:
    cache = tmp_path / "kept"
    settings = {**sentences(tmp_path, "frozen"), "cache": str(cache)}
    _recent.clear()
    _, data, _ = world(tmp_path, sentences=settings)
    (file,) = cache.iterdir()
    before, written = data.valid[0]["vectors"], file.stat().st_mtime_ns
    _recent.clear()
    _, again, _ = world(tmp_path, sentences=settings, data={"split_seed": 5})  # another split
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [written]
    _recent.clear()
    _, same, _ = world(tmp_path, sentences=settings)
    assert np.array_equal(same.valid[0]["vectors"], before)
    assert set(again.splits["valid"].ids()) != set(data.splits["valid"].ids())
    file.write_bytes(b"damaged")
    _recent.clear()
    with pytest.raises(RunError, match=r"safetensors cannot be read: .* it is computed again"):
        world(tmp_path, sentences=settings)


def test_vectors_that_are_in_memory_are_written_to_a_new_folder_too(tmp_path: Path) -> None:
    frozen = sentences(tmp_path, "frozen")
    world(tmp_path, sentences=frozen)
    assert len(_recent) == 1
    for name in ("one", "two"):
        world(tmp_path, sentences={**frozen, "cache": str(tmp_path / name)})
        assert len(list((tmp_path / name).iterdir())) == 1


def test_a_trained_encoder_gets_gradients_and_a_frozen_one_is_not_in_the_model(
    tmp_path: Path,
) -> None:
    for kind in ("frozen", "trained"):
        task, data, model = world(tmp_path, sentences=sentences(tmp_path, kind))
        batch = task.collate(data.tokenizer)([data.train[number] for number in range(4)])
        task.loss(model, batch).backward()
        missing = [name for name, own in model.named_parameters() if own.grad is None]
        assert all(name.startswith("body.embeddings.") for name in missing)  # are not used
        assert any(name.startswith("words.") for name, _ in model.named_parameters()) == (
            kind == "trained"
        )


def test_other_weights_of_the_encoder_are_refused(tmp_path: Path) -> None:
    task, data, _ = world(tmp_path, sentences=sentences(tmp_path, "frozen"))
    data.tokenizer.sentences["sha256"] = "other"
    with pytest.raises(RunError, match="must be the sentence encoder that the model was trained"):
        task.encode(data.splits["valid"], data.tokenizer, training=False)


def test_the_folds_and_the_test_set_of_a_file_are_used(tmp_path: Path) -> None:
    settings = merge(
        write_files(tmp_path), {"data": {"folds": 4, "fold": 2, "fields": {"fold": "part"}}}
    )
    splits = DocumentsTask(DocumentsConfig(**settings)).splits()
    assert splits["test"].ids() == [f"r{i}" for i in range(40) if i // 2 % 4 == 2]
    numbers = np.concatenate([split.members for split in splits.values()])
    assert sorted(numbers) == list(range(40))
    assert len(splits["valid"]) == int(0.25 * 30)
    path = tmp_path / "later.jsonl"
    path.write_text(json.dumps({"name": "x", "says": ["Bad."], "mood": "sideways"}) + "\n")
    task, data, _ = world(tmp_path, data={"test": str(path)})
    assert sorted(map(len, data.splits.values())) == [1, 10, 30]
    with pytest.raises(DataError, match=r"later\.jsonl, line 1: the label must be one of down, up"):
        task.encode(data.splits["test"], data.tokenizer, training=False)


def test_generated_documents_differ_in_lengths_only_where_order_is_the_same() -> None:
    documents = generate(Places(documents=400))
    before: dict[str, list[tuple[int, int]]] = {name: [] for name in CLASSES}
    for own, label in zip(documents.sentences, documents.labels, strict=True):
        markers = [number for number, text in enumerate(own) if text in ("a", "b")]
        assert own[markers[0]] + own[markers[1]] == label[:2]
        assert sum(len(text.split()) for text in own) == 62
        tokens = floater.times.sentences([len(text.split()) for text in own], 1.0)
        before[label].append((markers[0], int(tokens[markers[0]])))
    for label, found in before.items():
        numbers, starts = zip(*found, strict=True)
        assert set(numbers) == {2, 3, 4, 5}
        assert (min(starts) > 25) == (max(starts) > 20) == label.endswith("late")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"synthetic": {}}}, "give either `documents`, a file, or `synthetic`"),
        ({"data": {"fields": {"fold": "part"}}}, "`fields.fold` needs `folds`"),
        ({"data": {"folds": 3, "test": "x"}}, "`test` is a file beside `documents`"),
        ({"sentences": {"kind": "pretrained"}}, "`name` must be given for `kind: pretrained`"),
        ({"sentences": {"trained": True}}, "`trained` is for `kind: pretrained`"),
        ({"sentences": {"cache": "x"}}, "`cache` is for a pretrained encoder"),
        ({"clock": {"origin": 3.0}}, r"`clock.origin` must be 0"),
        ({"clock": {"name": "minutes"}}, r"`clock.name` must be tokens"),
        (
            {"positions": {"times": "index", "spacing": "equidistant"}},
            "`spacing: equidistant` needs `times: real`",
        ),
        ({"compare": {"variants": {"a": {"space": "x"}}}}, r"compare\.variants\.a: .* no key"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DocumentsConfig(**merge(write_files(tmp_path), changes))


def test_an_encoder_that_reads_less_is_refused(tmp_path: Path) -> None:
    settings = {**sentences(tmp_path, "frozen"), "max_words": 64}
    with pytest.raises(ConfigError, match=r"`sentences.max_words` must be at most 40"):
        world(tmp_path, sentences=settings)


def test_positions_say_on_what_times_sentences_stand() -> None:
    assert DocumentPositions().described() == "flow input on sentence lengths"
    assert "equidistant sentences" in DocumentPositions(spacing="equidistant").described()
    assert "on indices" in DocumentPositions(times="index").described()
