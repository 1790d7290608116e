"""Text is read line by line, and its tokens are kept in a file."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from floater.errors import DataError
from floater.files import iterate_lines, read_lines
from floater.tasks.causal_lm.sequences import sequences
from floater.tasks.language_model import token_rows
from floater.tasks.language_model.text import ChangedLines, FileLines, Text, pieces, read_text
from floater.tasks.language_model.token_rows import TokenRows
from floater.tasks.masked_lm.blocks import cut
from tiny_tokenizers import tiny

LINES = [f"the dog {'is a ' * (number % 7)}dog" for number in range(60)]


def rows_of(lengths: list[int]) -> list[np.ndarray]:
    numbers = itertools.count()
    return [np.array([next(numbers) for _ in range(length)]) for length in lengths]


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [3, 0, 9, 2], [12], [0], [], [4, 4, 4]])
@pytest.mark.parametrize(("room", "shared"), [(4, 0), (4, 1), (1, 1), (3, 0)])
def test_pieces_of_lines_are_pieces_of_the_whole(
    lengths: list[int], room: int, shared: int
) -> None:
    lines = rows_of(lengths)
    whole = np.concatenate(lines) if lines else np.empty(0, np.int64)
    expected = [
        whole[first : first + room + shared].tolist()
        for first in range(0, len(whole) - shared, room)
    ]
    assert [piece.tolist() for piece in pieces(iter(lines), room, shared=shared)] == expected


def test_rows_are_read_back_as_they_were_written() -> None:
    lines = rows_of([5, 0, 1, 30])
    rows = TokenRows(iter(lines))
    assert len(rows) == 4
    assert rows.lengths.tolist() == [5, 0, 1, 30]
    for number in range(-4, 4):
        assert rows[number].dtype == np.int64
        np.testing.assert_array_equal(rows[number], lines[number])
    np.testing.assert_array_equal(rows[1:][2], lines[3])
    with pytest.raises(IndexError):
        rows[4]
    first = rows[0]
    first += 1  # a copy: the file stays as it is
    np.testing.assert_array_equal(rows[0], lines[0])
    assert len(TokenRows([])) == 0


def test_tokens_are_counted_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_rows, "_CHUNK", 3)
    rows = TokenRows([np.array([0, 1, 1]), np.array([4, 1]), np.array([7])])
    assert rows.counts(6).tolist() == [1, 3, 0, 0, 1, 0]


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(DataError, match=r"room for the tokens .* No space left .* TMPDIR"):
        TokenRows([np.arange(3)])


def test_files_are_read_anew_and_summed_up_once(tmp_path: Path) -> None:
    plain, packed, documents = (tmp_path / name for name in ("a.txt", "b.txt.gz", "c.jsonl"))
    plain.write_text("one\ntwo\n", encoding="utf-8")
    packed.write_bytes(gzip.compress(b"three\r\n"))
    documents.write_text(json.dumps({"text": "four\nfive"}) + "\n\n", encoding="utf-8")
    text = read_text((plain, packed, documents))
    assert list(text.lines) == list(text.lines) == ["one", "two", "three", "four\nfive"]
    same = Text(["one", "two", "three", "four\nfive"], text.name)
    assert text.fingerprint() == same.fingerprint()
    assert len(text) == text.fingerprint()["lines"] == 4
    assert list(ChangedLines(text.lines, str.upper)) == ["ONE", "TWO", "THREE", "FOUR\nFIVE"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\nb\n", ["a", "", "b"]),
        (b"\n", [""]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
    ],
)
def test_lines_end_at_line_feeds_only(content: bytes, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert list(iterate_lines(path)) == read_lines(path) == expected


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="at least one line"):
        list(iterate_lines(path))


def test_a_wrong_byte_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"fine\nalso\nso \xff\n")
    with pytest.raises(DataError, match=r"line 3: must be UTF-8, but holds the byte 0xff"):
        read_text((path,))


class Opened:
    """Lines that record how far they were read."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self.read = lines, 0

    def __iter__(self) -> Iterator[str]:
        self.read = 0
        for line in self._lines:
            self.read += 1
            yield line


def test_with_a_limit_the_rest_of_the_text_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floater.tasks.language_model.text._BATCH", 4)
    lines = Opened(LINES)
    text = Text(lines, "text")
    whole = sequences(text, tiny("roberta"), 8)
    assert lines.read == len(LINES)
    first = sequences(text, tiny("roberta"), 8, most=2)
    assert lines.read < len(LINES) / 3
    assert [first[number] for number in range(2)] == [whole[number] for number in range(2)]
    blocks = cut(text, tiny("roberta"), 8)
    assert lines.read == len(LINES)
    np.testing.assert_array_equal(cut(text, tiny("roberta"), 8, most=1)[0], blocks[0])
    assert lines.read < len(LINES) / 3


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """A text sixteen times as long needs hardly more memory."""

    def peak(repeats: int) -> int:
        path = tmp_path / f"{repeats}.txt"
        file: IO[str]
        with path.open("w", encoding="utf-8") as file:
            for _ in range(repeats):
                file.writelines(line + "\n" for line in LINES * 20)
        tracemalloc.start()
        text = Text(FileLines((path,)), "text")
        assert text.fingerprint()["lines"] == 20 * len(LINES) * repeats
        rows = sequences(text, tiny("roberta"), 64)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(rows) > 100 * repeats
        return used

    peak(1)  # what is loaded only once
    assert peak(16) < 2 * peak(1)
