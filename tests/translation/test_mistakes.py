from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import Any

import datasets
import pytest

from command_line import mistake as run
from floater import recipes
from floater.encoders import ENCODER_CONFIGS
from floater.errors import DataError
from floater.files import read_lines
from floater.tasks import TASKS
from floater.tasks.translation import corpus, translate
from floater.tasks.translation.config import TranslationDataConfig, TranslationHub

from .corpora import write_config


def spoil_empty(folder: Path) -> None:
    (folder / "train.source").write_text("")


def spoil_count(folder: Path) -> None:
    with (folder / "train.source").open("a") as file:
        file.write("1 2\n")


def spoil_bytes(folder: Path) -> None:
    lines = (folder / "valid.target").read_bytes().split(b"\n")
    lines[4] = b"f\xfcnf"
    (folder / "valid.target").write_bytes(b"\n".join(lines))


def spoil_missing(folder: Path) -> None:
    (folder / "test.target").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_empty, r"train\.source must hold at least one line, but is empty"),
        (spoil_count, r"must have the same number of lines, but have 121 and 120"),
        (spoil_bytes, r"valid\.target, line 5: must be UTF-8, but holds the byte 0xfc"),
        (spoil_missing, r"test\.target must be a text file, but there is none"),
    ],
)
def test_a_bad_file_is_named_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Any,
    message: str,
) -> None:
    config = write_config(tmp_path)
    spoil(tmp_path)
    said = run(monkeypatch, capsys, "train", config, "--out", tmp_path / "run")
    assert re.search(message, said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainin": {}}, "has no key `trainin`; did you mean `training`?"),
        ({"training": {"lerning_rate": 1}}, "TranslationTraining has no key `lerning_rate`"),
        (
            {"positions": {"encoder": {"kind": "flow", "dleta": 1}}},
            "FlowConfig has no key `dleta`; did you mean `delta`?",
        ),
        (
            {"positions": {"encoder": {"kind": "flwo"}}},
            f"encoder: `kind` must be one of {', '.join(ENCODER_CONFIGS)}, but is 'flwo'.",
        ),
        (
            {"positions": {"sites": {"blocks": [1]}}},
            "give a `kind` (input, blocks, qkv, phases or table)",
        ),
        ({"model": {"heads": 3}}, "`dim` must be even and divisible by `heads` (3), but is 16"),
        ({"training": {"precision": "fp16"}}, "fp16, which needs a GPU, but there is none"),
        ({"init_scale": 0.1}, "`init_scale` belongs to a warm start"),
        (
            {"positions": {"encoder": {"kind": "learned", "max_length": 5}}},
            "has 5 positions, but the longest training sentence has",
        ),
        ({"positions": {"encoder": {"kind": "rotary"}, "sites": "input"}}, "`sites` must be qkv"),
        (
            {"positions": {"encoder": {"kind": "relative"}, "sites": "blocks"}},
            "relative positions are part of self-attention: `sites` must be qkv",
        ),
        (
            {"positions": {"encoder": {"kind": "relative"}, "sites": "qkv", "rotary": True}},
            "`rotary` stands beside an `encoder` that adds encodings",
        ),
        (
            {
                "positions": {
                    "encoder": {"kind": "relative"},
                    "sites": "qkv",
                    "jitter": {"stretch": 2},
                }
            },
            "`jitter` needs an encoder that serves any time",
        ),
        ({"training": {"keep": 1}}, "`average` must not exceed `keep` (1), but is 2"),
        ({"training": {"updates": 0}}, "`updates`"),
        ({"vocabulary": {"size": 9000}}, "the training data allows only"),
        ({"data": {"max_tokens": 1}}, "No training pair is left of 120"),
        (
            {"training": {"batch_tokens": 4}},
            "`batch_tokens` is 4, but the longest training sentence has",
        ),
        ({"init_from": "nowhere"}, "nowhere must be the folder of a run"),
        (
            {"task": "cooking"},
            f"`task` must be one of {', '.join(TASKS)}, but is 'cooking'",
        ),
        ({"data": {"train": {"source": "a.txt"}}}, "give either `source` and `target`"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    config = write_config(tmp_path, **changes)
    assert message in run(monkeypatch, capsys, "train", config, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,", "line 1: not valid YAML"),
        ("- 1", "must hold keys with values, but holds a list"),
        ("", "must hold keys with values, but holds nothing"),
        ("extends: config.yaml", "extends itself"),
        ("data: ${NOT_A_VARIABLE}", "variable NOT_A_VARIABLE, but it is not set"),
    ],
)
def test_a_bad_config_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert message in run(monkeypatch, capsys, "train", tmp_path / "config.yaml")


def test_tsv_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tsv = tmp_path / "pairs.tsv.gz"
    split = {"tsv": str(tsv), "source_column": "en"}
    config = write_config(tmp_path, data={"source": "digits", "target": "de", "train": split})
    for text, message in (
        ("id\tfr\tde\n1\ta\tb\n", "must have a column 'en', but its header names id, fr, de"),
        ("id\ten\tde\n", "at least one row below its header"),
        ("id\ten\tde\n1\ta\tb\n2\ta\n", "line 3: must have 3 columns, but has 2"),
    ):
        tsv.write_bytes(gzip.compress(text.encode()))
        assert message in run(monkeypatch, capsys, "train", config, "--out", tmp_path / "run")
    tsv.write_bytes(b"not gzip")
    assert "must be gzip by its name" in run(
        monkeypatch, capsys, "train", config, "--out", tmp_path / "run"
    )


def test_a_run_folder_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path)
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_text((tmp_path / "config.yaml").read_text())
    assert "holds a run already; continue it with --resume" in run(
        monkeypatch, capsys, "train", config, "--out", out
    )
    assert "was started with training.lr = 0.003, but the config now says 0.1" in run(
        monkeypatch, capsys, "train", config, "--out", out, "--resume", "--set", "training.lr=0.1"
    )
    assert "holds no model yet" in run(monkeypatch, capsys, "translate", out)
    assert "must be the folder of a run" in run(
        monkeypatch, capsys, "evaluate", tmp_path / "nowhere"
    )
    assert "--output` must be a file" in run(
        monkeypatch, capsys, "translate", out, "--output", tmp_path
    )
    assert "nowhere must be the folder of a run" in run(
        monkeypatch, capsys, "evaluate", out, "--against", tmp_path / "nowhere"
    )
    assert "must hold checkpoints to average, but holds none" in run(
        monkeypatch, capsys, "average", out
    )
    assert "must have the form key=value" in run(
        monkeypatch, capsys, "train", config, "--out", out, "--set", "x"
    )


def test_hub_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(name: str, config: str, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        return datasets.Dataset.from_list(
            [{"translation": {"de": f"Hund {i}", "en": f"dog {i}"}} for i in range(3)]
        )

    monkeypatch.setattr(datasets, "load_dataset", fake)
    data = TranslationDataConfig(source="en", target="de", hub=TranslationHub())
    found = corpus.load(data, "valid")
    assert found is not None
    assert list(found) == [("dog 0", "Hund 0"), ("dog 1", "Hund 1"), ("dog 2", "Hund 2")]
    assert asked == [("wmt/wmt14", "de-en", "validation")]
    with pytest.raises(DataError, match="must have the language 'fr', but has de, en"):
        corpus.load(TranslationDataConfig(source="en", target="fr", hub=TranslationHub()), "test")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        DataError, match=r"wmt/wmt14 \(de-en, train\) cannot be loaded: Couldn't reach the hub"
    ):
        corpus.load(data, "train")


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_lines(tmp_path / "marked.txt") == ["one", "two"]


def test_settings_on_the_command_line_add_up(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("positions: {sites: input}")
    found = recipes.read(
        tmp_path / "c.yaml", ["positions.sites=qkv", "positions.sites.blocks=[1, 2]", "seed=3"]
    )
    assert found == {"positions": {"sites": {"kind": "qkv", "blocks": [1, 2]}}, "seed": 3}


def test_standard_input_that_is_not_text() -> None:
    with pytest.raises(DataError, match="Standard input, line 2: must be UTF-8"):
        list(translate._decoded(io.BytesIO(b"good\nb\xffd\n")))
