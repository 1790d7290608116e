"""The pace of an attached flow: filled in from the model, saved, and free in older folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, MarianMTModel

import floater
from floater.encoders import FlowConfig
from floater.files import HASHES
from floater.recipes import to_yaml
from floater.runs.folder import CONFIG, RunFolder
from floater.tasks import task_from, task_of_run

OLD = Path(__file__).parents[1] / "fixtures" / "version1"


def bert(positions: int = 48) -> Any:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=positions,
        )
    ).eval()


def settings_of(model: Any) -> FlowConfig:
    attached = floater.attachment(model)
    assert attached is not None
    assert isinstance(attached.config, FlowConfig)
    return attached.config


@pytest.mark.parametrize(("positions", "length"), [(48, 48), (512, 512), (1000, 512)])
def test_the_length_is_that_of_the_model(positions: int, length: int) -> None:
    model = bert(positions)
    attached = floater.attach(model, FlowConfig())
    assert settings_of(model).length == length
    assert attached.encoder.dynamics.span == pytest.approx(0.1 * length)  # type: ignore[union-attr]
    assert attached.describe()["encoder"]["length"] == length


def test_a_saved_flow_keeps_its_pace_on_a_base_with_other_limits(tmp_path: Path) -> None:
    model = bert()
    attached = floater.attach(model, FlowConfig(zero_init=False, init_scale=3.0))
    before = attached.site_tables(40)
    floater.save_pretrained(model, tmp_path / "saved")
    description = json.loads((tmp_path / "saved" / "floater_config.json").read_text())
    assert description["format"] == 3
    assert (description["encoder"]["pace"], description["encoder"]["length"]) == ("safe", 48)
    loaded = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "saved")
    again = floater.attachment(loaded)
    assert again is not None
    after = again.site_tables(40)
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)
    assert float(before.abs().max()) > 0.01


def test_a_folder_from_before_the_pace_is_free(tmp_path: Path) -> None:
    """Its description has no `pace`, and its encodings are those of the plain network."""
    model = bert()
    attached = floater.attach(model, FlowConfig(pace="free", zero_init=False, initial_scale=0.5))
    before = attached.site_tables(40)
    folder = tmp_path / "saved"
    floater.save_pretrained(model, folder)
    (folder / HASHES).unlink(missing_ok=True)
    for name in ("floater_config.json", "config.json"):
        content = json.loads((folder / name).read_text())
        description = content if name == "floater_config.json" else content["floater"]
        description["format"] = 1
        for key in ("pace", "length"):
            del description["encoder"][key]
        (folder / name).write_text(json.dumps(content))
    loaded = floater.from_pretrained(AutoModelForMaskedLM, folder)
    assert (settings_of(loaded).pace, settings_of(loaded).length) == ("free", None)
    again = floater.attachment(loaded)
    assert again is not None
    after = again.site_tables(40)
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


@pytest.mark.parametrize("folder", ["flow/model", "flow/checkpoints/checkpoint-4"])
def test_models_and_checkpoints_of_older_versions_are_free(folder: str, tmp_path: Path) -> None:
    shutil.copytree(OLD / folder, tmp_path / "old")
    assert settings_of(floater.from_pretrained(MarianMTModel, tmp_path / "old")).pace == "free"


def test_runs_of_older_versions_are_free() -> None:
    for name in ("flow", "compare-rte/floater-0"):
        encoder = task_of_run(OLD / name).config.positions.encoder
        assert isinstance(encoder, FlowConfig)
        assert encoder.pace == "free"


def test_a_new_config_is_safe_and_a_run_records_it(tmp_path: Path) -> None:
    settings = {
        "task": "masked_lm",
        "model": {"name": "somewhere"},
        "data": {"train": ["a.txt"], "valid": ["b.txt"]},
    }
    task = task_from(settings)
    recorded = task.config.dump()
    assert recorded["positions"]["encoder"]["pace"] == "safe"
    (tmp_path / CONFIG).write_text(to_yaml(recorded), encoding="utf-8")
    assert RunFolder(tmp_path).settings()["positions"] == recorded["positions"]
