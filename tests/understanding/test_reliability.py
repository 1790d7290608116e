"""Understanding runs that diverge, are damaged, or are used twice; those of translation stand in
its own folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import mistake, said
from floater.errors import RunError
from floater.runs.folder import RunFolder
from floater.runs.locks import LOCK
from floater.tasks.glue.task import GlueConfig, GlueTask
from floater.tasks.masked_lm.task import MaskedConfig, MaskedLMTask
from floater.tasks.understanding.evaluation import table_of
from floater.training.checkpoints import checkpoints
from floater.training.run import run
from floater.training.task import Task

from .worlds import glue, masked

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 0x41]) + data[-8:],
    "a list": lambda data: b"[1, 2]",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def plain(world: Path) -> Path:
    """A finished run without an encoder, which saves no attachment."""
    config = GlueConfig(**glue(world, positions={"encoder": None}, training={"updates": 2}))
    return run(GlueTask(config), world / "plain").path


def test_every_task_stops_where_its_loss_is_not_finite(world: Path, tmp_path: Path) -> None:
    training = {
        "lr": 1e30,
        "updates": 12,
        "warmup": 0.0,
        "save_every": 1,
        "evaluate_every": 1,
        "part": "all",
    }
    off = {"encoder": None}
    tasks: list[Task[Any]] = [
        GlueTask(GlueConfig(**glue(world, "stsb", positions=off, training=training))),
        MaskedLMTask(
            MaskedConfig(**masked(world, "bert with head", positions=off, training=training))
        ),
    ]
    for number, task in enumerate(tasks):
        with pytest.raises(RunError, match=r"(must be finite, but is|must be finite, but are)"):
            run(task, tmp_path / str(number))
        folder = RunFolder(tmp_path / str(number))
        assert not folder.model.exists()
        assert not folder.scores().sets


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_without_an_encoder_is_refused(
    plain: Path,
    tmp_path: Path,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copytree(plain, tmp_path / name)
        path = tmp_path / name / "model" / name
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert name in mistake(monkeypatch, capsys, "evaluate", tmp_path / name)
        assert not (tmp_path / name / LOCK).exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_table_is_refused(plain: Path, tmp_path: Path, damage: str) -> None:
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(plain, folder.path)
    assert table_of(folder, "valid").shape == (20, 2)
    path = folder.predictions / "valid.table" / "table.safetensors"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(RunError, match=r"table\.safetensors is damaged .* run `floater evaluate"):
        table_of(folder, "valid")
    (path.parent / "hashes.json").unlink()
    if damage != "flipped":
        with pytest.raises(
            RunError, match=r"table\.safetensors cannot be read.* run `floater evaluate"
        ):
            table_of(folder, "valid")


@pytest.mark.parametrize(
    "name", ["scores.json", "run.json", "predictions/valid.table/table.safetensors"]
)
def test_a_comparison_of_damaged_runs_ends_in_one_line(
    world: Path,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rte.yaml"
    path.write_text(yaml.safe_dump(glue(world, training={"updates": 1}, compare={"seeds": [0]})))
    table = said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out")
    hit = tmp_path / "out" / "rte" / "base-0" / name
    whole = hit.read_bytes()
    for kind, damage in DAMAGES.items():
        if kind == "flipped" and name.endswith(".json"):  # another letter is still JSON
            continue
        hit.write_bytes(damage(whole))
        mistake(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--resume")
    hit.unlink()
    mistake(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--resume")
    hit.write_bytes(whole)
    assert (
        said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--resume") == table
    )


def test_patience_before_the_first_save_still_finishes(world: Path, tmp_path: Path) -> None:
    training = {
        "patience": 1,
        "evaluate_every": 1,
        "save_every": 100,
        "updates": 30,
        "lr": 1e-12,
        "keep_checkpoints": True,
    }
    folder = run(GlueTask(GlueConfig(**glue(world, training=training))), tmp_path / "run")
    assert folder.facts()["finished"]
    assert folder.facts()["updates"] < 30
    assert len(checkpoints(folder.checkpoints)) == 1
    assert folder.scores().sets["valid"].scores
