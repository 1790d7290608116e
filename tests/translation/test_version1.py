"""Runs that the previous version of the run folder wrote: they load, evaluate and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from transformers import MarianMTModel

import floater
from floater.runs.encodings import Encodings
from floater.runs.folder import RunFolder
from floater.tasks import task_of_run
from floater.tasks.translation.config import TranslationConfig
from floater.training.task import EvaluationRequest

from .corpora import train

FIXTURES = Path(__file__).parents[1] / "fixtures" / "version1"


@pytest.fixture
def flow(tmp_path: Path) -> RunFolder:
    for name in ("flow", "sinusoidal"):
        shutil.copytree(FIXTURES / name, tmp_path / name)
    return RunFolder.existing(tmp_path / "flow")


def test_scores_and_paired_tests_are_read(flow: RunFolder) -> None:
    scores = flow.scores()
    assert scores.sets["test"].scores["bleu"].score == 0.4512732359843138
    assert scores.sets["test"].examples == 10
    assert scores.sets["test"].settings == {"beam": 1, "length_penalty": 0.6}
    bins = RunFolder(flow.path.parent / "sinusoidal").scores().sets["test"].bins
    assert {name: content.examples for name, content in bins.items()} == {
        "0-16": 0,
        "16-32": 3,
        "32+": 7,
    }
    (paired,) = scores.paired
    assert (paired.test_set, paired.against, paired.measure) == ("test", "sinusoidal", "bleu")
    assert paired.difference == 0.4512732359843138
    encodings = Encodings.read(flow.path)
    assert encodings is not None
    assert encodings.kind == "flow"


def test_the_model_loads_and_evaluates_to_the_recorded_scores(flow: RunFolder) -> None:
    model = floater.from_pretrained(MarianMTModel, flow.model)
    attachment = floater.attachment(model)
    assert attachment is not None
    before = flow.scores().sets["test"]
    request = EvaluationRequest(against=flow.path.parent / "sinusoidal")
    task_of_run(flow.path).evaluate(flow, request, Console(quiet=True))
    after = flow.scores()
    assert after.sets["test"].scores == before.scores
    assert after.sets["test"].data == before.data
    assert after.sets["test"].files == before.files
    assert [test.difference for test in after.paired] == [0.4512732359843138]


TIMES = "floater.trained_times.bits"


def weights(folder: RunFolder, updates: int) -> dict[str, Tensor]:
    """The weights of a checkpoint."""
    return load_file(folder.checkpoints / f"checkpoint-{updates}" / "model.safetensors")


def test_a_run_resumes_to_the_bits_of_a_whole_one(flow: RunFolder, tmp_path: Path) -> None:
    """Its checkpoint was written by the previous version, the whole run by this one.

    The checkpoint comes from a CPU with AVX2. One that rounds differently, as with AVX-512, shows
    that by other bits after the same four updates; there the weights must be close.
    """
    settings = flow.settings()
    first = weights(flow, 4)
    settings["training"]["updates"] = 6
    config = TranslationConfig(**settings)
    resumed = train(config, flow.path, resume=True)
    whole = train(config, tmp_path / "whole")
    settings["training"]["updates"] = 4
    begun = weights(train(TranslationConfig(**settings), tmp_path / "begun"), 4)
    same_rounding = all(torch.equal(tensor, begun[name]) for name, tensor in first.items())
    tolerance = 0.0 if same_rounding else 1e-5
    ours, theirs = weights(whole, 6), weights(resumed, 6)
    ours.pop(TIMES)
    theirs.pop(TIMES)  # the previous version did not record those of its updates
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if not same_rounding and name.endswith("k_proj.bias"):
            continue  # attention does not depend on it: its gradient is rounding, which Adam scales
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance)
    assert resumed.facts()["updates"] == 6
    assert resumed.finished()
