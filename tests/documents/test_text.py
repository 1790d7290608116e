"""What is a document, and what is refused, with the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.tasks.documents.config import DocumentData
from floater.tasks.documents.text import read
from floater.tasks.documents.tokens import train_vocabulary, words_of


def documents(path: Path, *entries: object, **settings: Any) -> Any:
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n")
    return read(path, DocumentData(documents=path, **settings))


def test_sentences_are_entries_or_lines_and_blank_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    given = documents(path, {"id": 7, "text": ["One.  Two.", " ", "Three."], "label": True})
    assert (given.ids, given.labels) == (["7"], ["true"])
    assert given.sentences == [["One. Two.", "Three."]]
    entry = {"id": "x", "text": "One. Two.\n\nThree.\n", "label": "y"}
    assert documents(path, entry, split="lines").sentences == [["One. Two.", "Three."]]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = tmp_path / "a.jsonl.gz"
    assert read(packed, DocumentData(documents=packed, split="lines")).ids == ["x"]


def test_a_library_finds_sentences_in_text(tmp_path: Path) -> None:
    pytest.importorskip("syntok", reason="the extra `documents` is not installed")
    text = "Dr. Smith paid 3.5 dollars. Was it e.g. too much? No."
    entry = {"id": "x", "text": [text, "A new paragraph."], "label": "y"}
    assert documents(tmp_path / "a.jsonl", entry, split="library").sentences == [
        ["Dr. Smith paid 3.5 dollars.", "Was it e.g. too much?", "No.", "A new paragraph."]
    ]


GOOD = {"id": "a", "text": ["One."], "label": "x", "fold": 1}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "b", "label": "x"}, "line 2: must have `text`, but has id, label"),
        ({**GOOD, "id": "b", "text": None}, "line 2: `text` must be text or a list of texts"),
        ({**GOOD, "id": "b", "text": "One."}, "line 2: `text` must be a list of sentences"),
        ({**GOOD, "id": "b", "text": []}, "line 2: `text` must hold at least one sentence"),
        ({**GOOD, "id": "b", "text": [" ", ""]}, "line 2: `text` must hold at least one sentence"),
        ({**GOOD, "id": "b", "text": ["a", 3]}, "line 2: entry 2 of `text` must be text, but is 3"),
        ({"id": "b", "text": ["One."]}, "line 2: must have `label`"),
        ({**GOOD, "id": "b", "label": " "}, "line 2: `label` must not be empty"),
        ({**GOOD, "id": "b", "label": 0.5}, "line 2: `label` must be text"),
        (GOOD, "line 2: `id` must be unique, but an earlier document also has 'a'"),
        ({**GOOD, "id": "b", "fold": 2}, "line 2: `fold` must be from 0 to 1, .* but is 2"),
        ("{", "line 2: must be JSON"),
        ("[3]", "line 2: must be an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, entry: object, message: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl, {message}"):
        documents(tmp_path / "a.jsonl", GOOD, entry, folds=2, fields={"fold": "fold"})


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold at least one document, but holds none"):
        documents(tmp_path / "a.jsonl", "")


def test_long_documents_are_cut_and_counted(tmp_path: Path) -> None:
    entry = {**GOOD, "text": ["a", "b", "c"]}
    found = documents(tmp_path / "a.jsonl", entry, {**GOOD, "id": "b"}, max_sentences=2)
    assert (found.sentences, found.truncated) == ([["a", "b"], ["One."]], 1)


def test_lengths_count_all_words_and_unknown_ones_have_a_number() -> None:
    tokenizer = train_vocabulary(["to be or not to be", "To do"], 4)
    words = words_of(tokenizer, ["be to , you to be", "to", "\u200e"], 3)
    assert words.lengths.tolist() == [6, 1, 1]
    known = tokenizer.get_vocab()
    assert set(known) == {"[PAD]", "[UNK]", "to", "be"}
    assert words.of(0).tolist() == [known["be"], known["to"], known["[UNK]"]]
    assert words.of(1).tolist() == [known["to"]]
    assert len(words.of(2)) == 1
