from __future__ import annotations

import json
import re
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, set_seed

import floater
from attachments.attach_models import CAUSAL, SEQ2SEQ, TEXT, batch, make
from command_line import said
from floater.errors import ConfigError, DataError, RunError
from floater.files import record_hashes
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder
from floater.tasks.compare import compare
from floater.tasks.glue.task import GlueConfig, GlueTask
from floater.tasks.language_model.text import Text, from_wikitext
from floater.tasks.masked_lm.blocks import Blocks, cut
from floater.tasks.masked_lm.task import HeadTask, MaskedConfig, MaskedLMTask
from floater.tasks.understanding.models import (
    attachment_folder,
    lacks_head,
    load_trained,
    select_trained,
)
from floater.training.run import run

from .worlds import WORDS, glue, masked, text, tokenizer, write_model

QUIET = Console(quiet=True)
ENCODERS = [name for name in TEXT if name not in (*SEQ2SEQ, *CAUSAL)]


def test_wikitext_becomes_normal_text() -> None:
    line = " The 2 @-@ 1 win , its <unk> , was worth $ 1 @,@ 000 @.@ 5 ( of Tom 's ) . "
    assert from_wikitext(line, "[UNK]") == "The 2-1 win, its [UNK], was worth $1,000.5 (of Tom's)."
    assert from_wikitext(" = = Early life = = ", "") == "Early life"


def test_blocks_hold_the_whole_text_in_order() -> None:
    lines = text(30, 4)
    fast_tokenizer = tokenizer()
    rows = cut(Text([*lines[:10], "", *lines[10:]], "text"), fast_tokenizer, 24)
    assert all(len(row) == 22 for row in rows[:-1])
    assert (
        str(fast_tokenizer.decode(np.concatenate(rows))).split()
        == [word for line in lines for word in line.split()][: sum(map(len, rows))]
    )
    with pytest.raises(
        DataError, match="`max_length` must leave room for 4 tokens and the special tokens"
    ):
        cut(Text(lines, "text"), fast_tokenizer, 5)
    with pytest.raises(DataError, match="empty must hold at least 4 tokens of text, but holds 0"):
        cut(Text([" ", ""], "empty"), fast_tokenizer, 24)


def test_lines_may_be_separate_examples() -> None:
    """Each line begins a block; a line that is too long fills several."""
    lines, fast_tokenizer = text(30, 4), tokenizer()
    rows = cut(Text(lines, "text"), fast_tokenizer, 24, apart=True)
    expected = []
    for line in lines:
        tokens = fast_tokenizer(line, add_special_tokens=False)["input_ids"]
        expected += [tokens[i : i + 22] for i in range(0, len(tokens), 22)]
    assert [row.tolist() for row in rows] == [tokens for tokens in expected if len(tokens) >= 4]


def blocks(seed: int = 0, share: float = 0.15) -> Blocks:
    fast_tokenizer = tokenizer()
    return Blocks(cut(Text(text(400, 3), "text"), fast_tokenizer, 64), fast_tokenizer, share, seed)


def test_tokens_are_masked_as_in_bert() -> None:
    vocabulary, rows = tokenizer(), blocks()
    hidden = masks = same = total = 0
    for number in range(len(rows)):
        row = rows[number]
        ids, labels = np.array(row["input_ids"]), np.array(row["labels"])
        chosen = labels != -100
        assert ids[0] == 0
        assert ids[-1] == 2
        assert not chosen[0]
        assert not chosen[-1]
        assert not np.isin(ids[~chosen][1:-1], vocabulary.all_special_ids).any()
        total, hidden = total + len(ids) - 2, hidden + int(chosen.sum())
        masks, same = (
            masks + int((ids[chosen] == 4).sum()),
            same + int((ids == labels)[chosen].sum()),
        )
    assert hidden / total == pytest.approx(0.15, abs=0.015)
    assert masks / hidden == pytest.approx(0.8, abs=0.05)
    assert same / hidden == pytest.approx(0.1 + 0.1 / len(WORDS), abs=0.04)


def test_masking_depends_on_seed_epoch_and_block() -> None:
    rows, same, other = blocks(), blocks(), blocks(seed=1)
    assert rows[3] == same[3]
    assert rows[3] != other[3]
    before = rows[3]
    rows.set_epoch(1)
    assert rows[3] != before
    rows.set_epoch(0)
    assert rows[3] == before
    assert all(
        any(label != -100 for label in blocks(share=0.001)[number]["labels"]) for number in range(5)
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_the_head_is_applied_to_masked_tokens_only_with_the_same_loss(name: str) -> None:
    model, inputs = make(name), batch(name)
    floater.attach(model, floater.FlowConfig(initial_scale=0.5))
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[0, 2], labels[0, 5], labels[1, 3], labels[2, 10] = 7, 8, 9, 10
    task = MaskedLMTask(MaskedConfig.model_construct())
    with torch.no_grad():
        logits = model(**inputs).logits
        expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = task.loss(model, {**inputs, "labels": labels})
        torch.testing.assert_close(loss, expected)
        predicted = task.predict(model, {**inputs, "labels": labels})
        assert predicted["hidden"].tolist() == [2, 1, 1]
        assert float(predicted["loss"].sum()) == pytest.approx(float(expected), rel=1e-5)
        assert torch.equal(model(**inputs).logits, logits), "the hook is gone"


@pytest.mark.parametrize(
    ("part", "moved"),
    [("flow", {"floater"}), ("start", {"floater"}), ("head", {"cls"}), ("nothing", set())],
)
def test_only_the_chosen_weights_train(part: str, moved: set[str]) -> None:
    model = make("bert")
    floater.attach(model, floater.FlowConfig())
    select_trained(model, part)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {name.split(".")[0] for name in trained} == moved
    if part == "start":
        assert trained == ["floater.encoders.all.initial"]
    assert model.get_input_embeddings().weight.requires_grad is False


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_a_new_head_starts_with_the_token_frequencies(tmp_path: Path, kind: str) -> None:
    """Its loss is then close to the entropy of the token frequencies, far below a uniform guess."""
    lines = ["the the the the dog the the dog the the"] * 40
    settings = masked(tmp_path, kind, max_length=16)
    for path in (*settings["data"]["train"], *settings["data"]["valid"]):
        Path(path).write_text("\n".join(lines) + "\n")
    config = MaskedConfig(
        **{**settings, "training": settings["head"]["training"]}
    ).without_encoder()
    task = HeadTask(config)
    data = task.prepare(RunFolder(tmp_path / "run"))
    set_seed(config.seed)
    model = task.build_model(data).eval()
    inputs = task.collate(data.tokenizer)([data.valid[i] for i in range(len(data.valid))])
    with torch.no_grad():
        loss = float(task.loss(model, inputs)) / float(inputs["labels"].ne(-100).sum())
    share = np.array([0.8, 0.2])
    assert loss == pytest.approx(float(-(share * np.log(share)).sum()), abs=0.7)
    assert loss < 0.5 * np.log(len(data.tokenizer))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base, control and dynamics, from a checkpoint without a head."""
    folder = tmp_path_factory.mktemp("masked")
    compare(MaskedLMTask(MaskedConfig(**masked(folder))), folder / "out", console=QUIET)
    return folder


def test_the_head_is_trained_once_and_shared_by_all_variants(compared: Path) -> None:
    out = compared / "out"
    assert lacks_head(AutoModelForMaskedLM, str(compared / "roberta"))
    assert not lacks_head(AutoModelForMaskedLM, str(out / "head" / "model"))
    comparison = Comparison.from_file(out / COMPARISON)
    assert comparison.base == "base"
    assert not comparison.more_is_better
    assert set(comparison.variants()) == {"start", "floater"}
    assert comparison.start["0"].identical
    base = MaskedLMTask.auto_class.from_pretrained(compared / "roberta").roberta.state_dict()
    for variant in ("floater-0", "start-0"):
        model: Any = load_trained(
            MaskedLMTask(MaskedConfig(**masked(compared))), out / variant / "model"
        )
        assert all(
            torch.equal(tensor, base[name]) for name, tensor in model.roberta.state_dict().items()
        ), "the base is frozen"
        flow = model.floater.encoder
        assert flow.initial.abs().sum() > 0
        assert bool(flow.dynamics.second.weight.any()) == (variant == "floater-0"), (
            "the control's h is zero"
        )
    losses = [row["eval_loss"] for row in RunFolder(out / "head").metrics() if "eval_loss" in row]
    scores = RunFolder(out / "base-0").scores().sets["valid"].scores
    base_loss = scores["loss"].score
    assert base_loss == pytest.approx(min(losses), rel=1e-6)
    assert scores["perplexity"].score == pytest.approx(np.exp(base_loss))


def test_a_task_starts_from_pretrained_dynamics(compared: Path, tmp_path: Path) -> None:
    settings = glue(
        compared,
        dynamics=str(compared / "out" / "floater-0"),
        training={"updates": 1, "freeze_flow": True},
    )
    folder = run(GlueTask(GlueConfig(**settings)), tmp_path / "run")
    before = floater.from_pretrained(
        AutoModelForMaskedLM, attachment_folder(compared / "out" / "floater-0")
    )
    after: Any = load_trained(GlueTask(GlueConfig(**settings)), folder.model)
    for name, tensor in before.floater.encoder.state_dict().items():
        assert torch.equal(tensor, after.floater.encoder.state_dict()[name]), name
    config = GlueConfig(**yaml.safe_load((folder.path / "config.yaml").read_text()))
    assert config.dynamics == compared / "out" / "floater-0"
    assert config.variants()["base"].dynamics is None
    changed = {**settings, "positions": {"sites": {"kind": "qkv", "blocks": [1]}}}
    with pytest.raises(ConfigError, match="`positions` must be those of"):
        run(GlueTask(GlueConfig(**changed)), tmp_path / "other")
    changed = {**settings, "model": {"name": str(write_model(tmp_path / "stranger", "bert"))}}
    with pytest.raises(floater.FloaterError, match="was made for another base"):
        run(GlueTask(GlueConfig(**changed)), tmp_path / "other")


def test_dynamics_used_on_longer_inputs_give_a_warning(compared: Path, tmp_path: Path) -> None:
    dynamics = tmp_path / "dynamics"
    shutil.copytree(compared / "out" / "floater-0", dynamics)
    facts = json.loads((dynamics / "run.json").read_text())
    del facts["facts_sha256"]
    saved = dynamics / "attachment" / "floater_config.json"
    description = json.loads(saved.read_text())
    assert description["range"]["encoder"] == pytest.approx(0.1 * (facts["longest"] - 1))

    def output(name: str, longest: int, **changes: Any) -> str:
        """What a run prints that starts from dynamics of this record."""
        (dynamics / "run.json").write_text(json.dumps({**facts, "longest": longest}))
        changed = {**description, **changes}
        if changed["range"] is None:  # as saved before there was one
            changed = {**changed, "format": 2}
            del changed["range"], changed["beyond"]
        saved.write_text(json.dumps(changed))
        record_hashes(saved.parent)
        settings = glue(compared, dynamics=str(dynamics), training={"updates": 1})
        console = Console(file=StringIO(), width=80)
        task = GlueTask(GlueConfig(**settings))
        folder = run(task, tmp_path / name, console=console)
        assert folder.facts()["longest"] > 4
        again = floater.attachment(load_trained(task, folder.model))
        assert again is not None
        assert again.trained_range["encoder"] > 0.3, "training extends the range"
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    recorded = output("recorded", 500, range={"encoder": 0.1 * 3})
    for printed in (recorded, output("before", 4, range=None)):
        flat = " ".join(printed.split())
        assert f"warning: {dynamics}: An input of " in flat
        assert (
            "lies past the range of training (times up to 0.3, those of 4 tokens); past it" in flat
        )
        assert re.search(r"mean norm of the encodings \d+\.\d at token 4, \d+\.\d at \d+", flat)
    assert "warning" not in output("long", 4, range={"encoder": 50.0})
    assert "warning" not in output("long before", 500, range=None)


@pytest.mark.slow
def test_a_trained_head_is_reused_for_other_lengths_but_not_for_other_training(
    tmp_path: Path,
) -> None:
    settings = masked(tmp_path)
    settings["head"] = {**settings["head"], "run": str(tmp_path / "head")}
    settings["training"] = {**settings["training"], "updates": 1}

    def train(name: str, **changes: Any) -> str:
        task = MaskedLMTask(MaskedConfig(**{**settings, **changes}))
        console = Console(file=StringIO(), width=500)
        run(task, tmp_path / name, console=console)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    assert "training one in" in train("first")
    before = (tmp_path / "head" / "model" / "model.safetensors").stat().st_mtime_ns
    assert "using the one in" in train("shorter", max_length=12)
    assert (tmp_path / "head" / "model" / "model.safetensors").stat().st_mtime_ns == before
    head = {**settings["head"], "training": {**settings["head"]["training"], "lr": 0.5}}
    with pytest.raises(
        RunError, match=r"head was started with training\.lr = .*, but the config now says 0\.5"
    ):
        train("other", head=head)


def test_a_head_folder_with_a_run_of_another_task_is_refused(
    compared: Path, tmp_path: Path
) -> None:
    settings = glue(tmp_path, training={"updates": 1})
    other = run(GlueTask(GlueConfig(**settings)), tmp_path / "cola").path
    task = MaskedLMTask(MaskedConfig(**masked(compared, head={"run": str(other)})))
    with pytest.raises(
        RunError,
        match=f"{other} must hold a run of masked_lm, but holds one of glue; choose another folder",
    ):
        run(task, tmp_path / "run", console=QUIET)


def test_a_checkpoint_with_a_head_is_used_as_it_is_and_the_encoder_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    changes = {"training": {"updates": 30, "evaluate_every": 30, "lr": 0.02}}
    path.write_text(yaml.safe_dump(masked(tmp_path, "bert with head", **changes)))
    said(monkeypatch, capsys, "train", path, "--out", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert not (folder.path / "head").exists()
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    output = said(monkeypatch, capsys, "evaluate", folder.path, "--data", tmp_path / "train.txt")
    assert "train: loss" in output
    assert (folder.path / "attachment" / "floater.safetensors").is_file()


def test_a_run_that_stopped_early_is_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate at which it only gets worse, a head stops after one evaluation without
    improvement, uses its best weights and trains no further when it is resumed.
    """
    steps = {
        "part": "head",
        "updates": 12,
        "lr": 30.0,
        "warmup": 0.0,
        "evaluate_every": 1,
        "save_every": 1,
        "patience": 1,
        "take": "best",
        "keep_checkpoints": True,
    }
    task = HeadTask(MaskedConfig(**masked(tmp_path, training=steps)).without_encoder())
    folder = run(task, tmp_path / "run", console=QUIET)
    losses = [row["eval_loss"] for row in folder.metrics() if "eval_loss" in row]
    assert 2 <= len(losses) < 12
    assert folder.scores().sets["valid"].scores["loss"].score == pytest.approx(
        min(losses), rel=1e-6
    )
    assert "EarlyStopping" not in capfd.readouterr().err
    folder.note(finished=False)  # as if killed between the last update and the end
    before = list(folder.metrics())
    assert run(task, tmp_path / "run", resume=True, console=QUIET).finished()
    assert [row for row in folder.metrics() if "loss" in row] == [
        row for row in before if "loss" in row
    ]
