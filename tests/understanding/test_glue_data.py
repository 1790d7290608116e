from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floater.errors import ConfigError, DataError
from floater.tasks import tsv
from floater.tasks.glue import data
from floater.tasks.glue.kinds import GLUE_TASKS, Name
from floater.tasks.glue.task import GlueData
from floater.tasks.understanding.batches import LengthBatches
from floater.training.world import World

from .worlds import write_lines

LAYOUTS: dict[Name, tuple[str | None, str, tuple[str, ...], float]] = {
    "cola": (None, 'gj04\t0\t*\tHe "ran.', ('He "ran.',), 0),
    "sst2": ("sentence\tlabel", "a fine film \t1", ("a fine film",), 1),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "1\t7\t8\tOne .\tTwo .",
        ("One .", "Two ."),
        1,
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "5\t1\t2\tWhy?\tHow?\t0",
        ("Why?", "How?"),
        0,
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tg\tf\t2012\t1\tn\tn\tOne.\tTwo.\t3.800",
        ("One.", "Two."),
        3.8,
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tb1\tb2\tp1\tp2\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t2\tg\tb\tb\tp\tp\tOne.\tTwo.\tneutral\tcontradiction",
        ("One.", "Two."),
        2,
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel",
        "0\tWho?\tHe did.\tnot_entailment",
        ("Who?", "He did."),
        1,
    ),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tOne.\tTwo.\tentailment", ("One.", "Two."), 0),
}


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_every_layout_is_read(name: Name, tmp_path: Path) -> None:
    header, row, texts, label = LAYOUTS[name]
    path = tmp_path / "dev.tsv.gz"
    path.write_bytes(
        gzip.compress(
            "".join(f"{line}\n" for line in ([header] if header else []) + [row, row]).encode()
        )
    )
    sentences = data.read(path, name)
    assert sentences.texts == [texts, texts]
    assert sentences.labels is not None
    assert sentences.labels.tolist() == [label, label]
    assert sentences.fingerprint()["rows"] == 2


def test_a_test_file_has_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    write_lines(path, ["index\tsentence1\tsentence2", "0\tOne.\tTwo."])
    assert data.read(path, "rte").labels is None


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        (
            "sst2",
            ["sentence\tlabel", "fine\t1", "poor\tbad"],
            r"line 3: `label` must be one of 0, 1, but is 'bad'",
        ),
        (
            "stsb",
            ["sentence1\tsentence2\tscore", "One.\tTwo.\thigh"],
            r"line 2: `score` must be a number from 0 to 5, but is 'high'",
        ),
        *(
            (
                "stsb",
                ["sentence1\tsentence2\tscore", f"One.\tTwo.\t{score}"],
                r"line 2: `score` must be a number from 0 to 5, but is ",
            )
            for score in ("nan", "inf", "-3", "99", "1_0", "")
        ),
        (
            "rte",
            ["index\tpremise\tsentence2\tlabel", "0\ta\tb\tentailment"],
            r"must have a column 'sentence1', but its header names",
        ),
        (
            "cola",
            ["gj04\t1\t\tHe ran.", "gj04\t1\tHe ran."],
            r"line 2: must have 4 columns, but has 3",
        ),
        ("sst2", ["sentence\tlabel"], "must hold at least one row"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: Name, lines: list[str], message: str) -> None:
    path = tmp_path / "dev.tsv"
    write_lines(path, lines)
    with pytest.raises(DataError, match=message):
        data.read(path, name)


def test_broken_rows_of_qqp_are_skipped_and_line_numbers_stay_right(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    good = ["2\t1\t2\tWhy?\tHow?\t1"] * 30
    write_lines(path, [header, "1\t1\t2\tWhy", *good])
    sentences = data.read(path, "qqp")
    assert sentences.texts == [("Why?", "How?")] * 30
    assert sentences.name == f"{path} (1 broken rows left out)"
    write_lines(path, [header, "1\t1\t2\tWhy", *good, "2\t1\t2\tWhy?\tHow?\tyes"])
    with pytest.raises(DataError, match="line 33"):
        data.read(path, "qqp")
    write_lines(path, [header, *good, *["1\t1\t2\tWhy"] * 5])
    with pytest.raises(
        DataError, match="line 32: must have 6 columns, but has 4; 4 further lines are broken too"
    ):
        data.read(path, "qqp")


def test_every_run_draws_the_same_rows() -> None:
    whole = data.Sentences([(str(number),) for number in range(100)], np.arange(100) // 50, "rows")
    drawn = whole.sampled(20)
    assert drawn.texts == whole.sampled(20).texts
    assert len(drawn) == 20
    assert drawn.labels is not None
    assert {text for (text,) in drawn.texts} != {str(number) for number in range(20)}
    assert all(
        int(text) // 50 == label for (text,), label in zip(drawn.texts, drawn.labels, strict=True)
    )
    assert whole.sampled(None) is whole.sampled(100) is whole
    assert drawn.fingerprint()["sha256"] != whole.fingerprint()["sha256"]


def test_the_hub_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def load(name: str, config: str, split: str) -> dict[str, Any]:
        requested.append((name, config, split))
        return {"premise": [" One."], "hypothesis": ["Two. "], "label": [2]}

    monkeypatch.setattr(data, "from_hub", load)
    sentences = data.read_hub("mnli", "validation_mismatched")
    assert requested == [("nyu-mll/glue", "mnli", "validation_mismatched")]
    assert sentences.texts == [("One.", "Two.")]
    assert sentences.labels is not None
    assert sentences.labels.tolist() == [2]


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets  # noqa: PLC0415

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        DataError, match=r"data set nyu-mll/glue \(rte, train\) cannot be loaded: no route$"
    ):
        tsv.from_hub("nyu-mll/glue", "rte", "train")


@pytest.mark.parametrize(
    "where", [{}, {"train": "a.tsv"}, {"train": "a.tsv", "valid": "b.tsv", "hub": True}]
)
def test_data_has_exactly_one_source(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give either `train` and `valid`"):
        GlueData(name="rte", **where)


def test_batches_hold_every_example_once_and_group_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 501)
    batches = LengthBatches(lengths, 8, seed=3)
    first = list(batches)
    assert sorted(number for batch in first for number in batch) == list(range(501))
    assert len(batches) == len(first) == 63
    assert list(batches) == first
    batches.set_epoch(1)
    assert list(batches) != first
    assert list(LengthBatches(lengths, 8, seed=4)) != first
    assert batches.padding() < 0.1  # 0.44 in random order


def test_processes_share_the_batches() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 50)
    epochs: list[int] = []
    shares = [
        LengthBatches(lengths, 8, seed=3, world=World(2, rank), follow=epochs.append)
        for rank in (0, 1)
    ]
    for share in shares:
        share.set_epoch(2)
    batches = [list(share) for share in shares]
    assert len(batches[0]) == len(batches[1]) == len(shares[0]) == 4
    assert {number for own in batches for batch in own for number in batch} == set(range(50))
    assert epochs == [2, 2]
