"""Language models on held-out blocks longer than those of training, by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
from floater.tasks.causal_lm.sequences import SkippingSequences
from floater.tasks.causal_lm.task import CausalConfig, CausalLMTask
from floater.tasks.compare import compare
from floater.tasks.language_model.token_rows import TokenRows

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
    assert "|length:30" in task.signature("loss", None)


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


# Inputs that skip tokens --------------------------------------------------------------------------


def skipping(rows: list[np.ndarray], skips: int, seed: int = 0) -> SkippingSequences:
    return SkippingSequences(TokenRows(rows), context=1, length=10, skips=skips, seed=seed)


@pytest.mark.parametrize("skips", [1, 3])
def test_skipped_tokens_keep_their_positions(skips: int) -> None:
    row = np.arange(1000, 1040)
    features = skipping([row, row[:5], row[:10]], skips)
    assert features.lengths().tolist() == [10, 5, 10]
    last = set()
    for epoch in range(200):
        features.set_epoch(epoch)
        example = features[0]
        places = np.array(example["position_ids"])
        assert len(places) == 10
        assert places[0] == 0
        assert (np.diff(places) >= 1).all()
        assert (np.diff(places) > 1).sum() <= skips
        assert example["input_ids"] == row[places].tolist()
        follows = np.diff(places, prepend=-1) == 1
        follows[0] = False
        expected = np.where(follows, row[places], -100).tolist()
        assert example["labels"] == expected
        last.add(int(places[-1]))
    assert min(last) < 15
    assert max(last) == 39  # the end of the sequence is reached
    for number, length in ((1, 5), (2, 10)):  # nothing to skip
        assert features[number]["position_ids"] == list(range(length))
        assert features[number]["labels"] == [-100, *row[1:length].tolist()]


def test_what_is_skipped_depends_on_seed_and_epoch() -> None:
    def drawn(seed: int, epoch: int) -> str:
        features = skipping([np.arange(100)], 1, seed)
        features.set_epoch(epoch)
        return str(features[0])

    assert drawn(3, 4) == drawn(3, 4)
    assert len({drawn(seed, epoch) for seed in range(4) for epoch in range(4)}) > 10


def test_the_loss_of_skipped_inputs_is_that_of_their_positions(tmp_path: Path) -> None:
    own = {**PHASES, "jitter": None}
    task = CausalLMTask(longer(tmp_path, positions=own, skips=1))
    data = task.prepare(RunFolder(tmp_path / "run"))
    assert data.train.lengths().max() == 10
    assert data.valid.lengths().max() == 30
    model: Any = task.build_model(data).eval()
    inputs = task.collate(data.tokenizer)([data.train[number] for number in range(4)])
    assert int(inputs["position_ids"].max()) > 10
    with torch.no_grad():
        found = float(task.loss(model, inputs))
        expected = 0.0
        for row in range(4):
            size = int(inputs["attention_mask"][row].sum())
            kept = {name: inputs[name][row : row + 1, :size] for name in inputs}
            logits = model(
                input_ids=kept["input_ids"],
                position_ids=kept["position_ids"],
                attention_mask=kept["attention_mask"],
            ).logits
            following = kept["labels"][0, 1:]
            expected += float(F.cross_entropy(logits[0, :-1], following, reduction="sum"))
    assert found == pytest.approx(expected, rel=1e-4)


def test_skips_need_longer_sequences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`skips` needs a `valid_length` above `max_length`, 10"):
        CausalConfig(**{**longer(tmp_path).dump(), "valid_length": 10, "skips": 1})
    with pytest.raises(ConfigError, match="`skips` and `gaps` of a jitter exclude each other"):
        longer(tmp_path, skips=1)
    with pytest.raises(
        ConfigError, match=r"at least 4 tokens for each of the 4 parts .* but is 10"
    ):
        longer(tmp_path, positions={**PHASES, "jitter": None}, skips=3)


def test_blocks_past_a_table_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    settings = causal(tmp_path, "gpt2", valid_length=65)
    rows = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2").config.max_position_embeddings
    assert rows == 64
    message = r"must have positions for 65 tokens \(`valid_length`\), but has 64; read less"
    with pytest.raises(ConfigError, match=message):
        CausalLMTask(CausalConfig(**settings)).check(tmp_path / "run")
    CausalLMTask(CausalConfig(**{**settings, "valid_length": 64})).check(tmp_path / "run")
    replaced = {"encoder": {"kind": "flow"}, "sites": "qkv", "own": "replace"}
    CausalLMTask(CausalConfig(**{**settings, "positions": replaced})).check(tmp_path / "run")


def test_trained_models_are_compared_with_one_at_the_fixed_scaling(tmp_path: Path) -> None:
    config = longer(tmp_path, training={"part": "all"})
    task = CausalLMTask(config)
    variants: dict[str, Any] = {name: own.config for name, own in task.variants(0).items()}
    assert list(variants) == ["base", "linear", "ntk", "yarn", "log", "trained", "floater"]
    assert [own.training.part for own in variants.values()] == [*["nothing"] * 5, "all", "all"]
    assert variants["base"].positions.encoder is None
    trained, own = variants["trained"].positions, variants["floater"].positions
    assert not trained.encoder.learned
    assert trained.encoder.scaling == own.encoder.scaling
    assert trained.jitter == own.jitter
    compared = {"seeds": [0], "leave_out": ["trained", "log"]}
    left = CausalLMTask(longer(tmp_path, training={"part": "all"}, compare=compared))
    assert list(left.variants(0)) == ["base", "linear", "ntk", "yarn", "floater"]
    wrong = CausalLMTask(longer(tmp_path, compare={"leave_out": ["logs"]}))
    with pytest.raises(
        ConfigError, match=r"`leave_out` of `compare` must name some of base, .*logs"
    ):
        wrong.variants(0)
