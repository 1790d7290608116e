"""Language models on held-out blocks longer than those of training, by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import floater
from floater.encoders import PhaseFlow
from floater.errors import ConfigError
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder
from floater.tasks.causal_lm.task import CausalConfig, CausalLMTask
from floater.tasks.compare import compare

from .worlds import causal

QUIET = Console(quiet=True)
PHASES = {
    "encoder": {"kind": "phases", "factor": 3.0},
    "sites": "phases",
    "jitter": {"gaps": 1, "until": 30},
}


def longer(folder: Path, **changes: Any) -> CausalConfig:
    """Trained on 10 tokens, measured on 30, in three bins."""
    settings = causal(folder, "llama", **{"positions": PHASES, **changes})
    return CausalConfig(**{**settings, "max_length": 10, "valid_length": 30, "bins": (10, 20)})


def test_the_loss_in_a_bin_is_that_of_its_tokens(tmp_path: Path) -> None:
    task = CausalLMTask(longer(tmp_path))
    data = task.prepare(RunFolder(tmp_path / "run"))
    assert data.train.lengths().max() == 10
    assert data.valid.lengths().max() == 30
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    inputs = task.collate(data.tokenizer)([data.valid[number] for number in range(3)])
    with torch.no_grad():
        outputs = task.predict(model, inputs)
        table = task.judge(
            data.splits["valid"], data.valid, {key: out.numpy() for key, out in outputs.items()}
        ).table
        logits = model(input_ids=inputs["input_ids"]).logits
    labels = inputs["labels"][:, 1:]
    losses = F.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels, reduction="none", ignore_index=-100
    )
    scores = task.scores(table)
    for name, (first, last) in {"0-10": (1, 10), "10-20": (10, 20), "20+": (20, 30)}.items():
        places = slice(first - 1, last - 1)  # the label of position n is at n - 1
        count = int(labels[:, places].ne(-100).sum())
        expected = float(losses[:, places].sum()) / count
        assert scores[f"loss {name}"] == pytest.approx(expected, rel=1e-5)
    assert list(task.measures) == ["loss", "accuracy", "loss 0-10", "loss 10-20", "loss 20+"]
    assert {"loss", "loss 10-20", "perplexity"} <= task.less_is_better
    assert "|length:30" in task.signature("loss")


def test_phases_are_compared_with_the_fixed_scalings(tmp_path: Path) -> None:
    task = CausalLMTask(longer(tmp_path))
    compare(task, tmp_path / "out", console=QUIET)
    comparison = Comparison.from_file(tmp_path / "out" / COMPARISON)
    variants = ["linear", "ntk", "yarn", "log", "floater"]
    assert list(dict.fromkeys(row.variant for row in comparison.rows)) == variants
    assert {row.measure for row in comparison.rows} >= {"loss", "loss 0-10", "loss 20+"}
    model, _ = task.load(tmp_path / "out" / "floater-0" / "model")
    attached = floater.attachment(model)
    assert attached is not None
    encoder = attached.encoders["phases"]
    assert isinstance(encoder, PhaseFlow)
    assert encoder.flow is not None
    assert bool(encoder.flow.dynamics.second.weight.any())  # type: ignore[union-attr, operator]
    assert attached.trained_range["decoder"] / attached.delta > 10
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "llama").state_dict()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in base.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bins": (20, 10)}, "must ascend"),
        ({"bins": (0, 10)}, "greater than or equal to 1"),
        ({"valid_length": 0}, "greater than or equal to 1"),
        ({"positions": {**PHASES, "sites": "qkv"}}, "go together"),
        ({"positions": {**PHASES, "jitter": {"gaps": 1}}}, "`gaps` and `until`"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = causal(tmp_path, "llama", positions=PHASES)
    with pytest.raises(ConfigError, match=message):
        CausalConfig(**{**settings, **changes})
