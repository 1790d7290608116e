from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, TrainerCallback

import floater
from attachments.attach_models import CAUSAL, batch, make
from command_line import mistake, said
from floater.errors import ConfigError, DataError
from floater.runs.comparison import COMPARISON, Comparison
from floater.runs.folder import RunFolder
from floater.tasks.causal_lm.sequences import Sequences, sequences
from floater.tasks.causal_lm.task import CausalConfig, CausalLMTask
from floater.tasks.compare import compare
from floater.tasks.language_model.text import Text, from_wikitext, read_text
from floater.tasks.understanding.models import load_trained
from floater.training.build_trainer import build_trainer
from floater.training.run import run

from .worlds import LLAMA_TARGETS, causal, text, tokenizer, write_causal_model, write_model

QUIET = Console(quiet=True)
KINDS = ("gpt2", "llama")
START, END = 0, 2


class NoSpecialTokens:
    """A tokenizer that adds no special tokens, as that of GPT-2."""

    def __init__(self) -> None:
        self._inner = tokenizer()

    def __call__(self, text: Any, **options: Any) -> Any:
        return self._inner(text, **{**options, "add_special_tokens": False})


def tokens(lines: list[str]) -> list[list[int]]:
    encoded: Any = tokenizer()(lines, add_special_tokens=False)["input_ids"]
    return list(encoded)


def predicted(rows: Sequences) -> list[list[int]]:
    """The tokens that each sequence predicts, in order."""
    return [[label for label in rows[n]["labels"] if label != -100] for n in range(len(rows))]


# Sequences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 7, 24, 10_000])
def test_packing_loses_no_token(length: int) -> None:
    lines = text(30, 4)
    whole = [token for line in tokens(lines) for token in line]
    rows = sequences(Text([*lines[:9], " ", *lines[9:]], "text"), tokenizer(), length)
    assert [token for row in predicted(rows) for token in row] == whole
    assert all(rows[n]["input_ids"] == [START, *row] for n, row in enumerate(predicted(rows)))
    assert set(rows.lengths()[:-1].tolist()) <= {length}
    assert rows.lengths().max() <= length


@pytest.mark.parametrize("length", [2, 7, 24, 10_000])
def test_without_a_start_token_a_sequence_begins_with_the_token_before(length: int) -> None:
    lines, bare = text(30, 4), NoSpecialTokens()
    whole = [token for line in tokens(lines) for token in line]
    rows = sequences(Text(lines, "text"), bare, length)  # type: ignore[arg-type]
    assert [token for row in predicted(rows) for token in row] == whole[1:]
    for number, row in enumerate(predicted(rows)):
        first = number * (length - 1)
        assert rows[number]["input_ids"] == whole[first : first + length]
        assert rows[number]["labels"] == [-100, *row]


def test_lines_apart_never_share_a_sequence() -> None:
    """A line that is too long fills several sequences, and ends with the tokenizer's end token."""
    lines = text(30, 4)
    rows = sequences(Text(lines, "text"), tokenizer(), 8, apart=True)
    expected = []
    for line in tokens(lines):
        document = [*line, END]
        expected += [document[first : first + 7] for first in range(0, len(document), 7)]
    assert predicted(rows) == expected
    assert all(rows[n]["input_ids"] == [START, *row] for n, row in enumerate(expected))
    first_ones = sequences(Text(lines, "text"), tokenizer(), 8, apart=True, most=3)
    assert predicted(first_ones) == expected[:3]


def test_too_little_text_or_room_is_refused() -> None:
    with pytest.raises(DataError, match="`max_length` must leave room for a token to predict afte"):
        sequences(Text(["the dog"], "text"), tokenizer(), 1)
    with pytest.raises(DataError, match="empty must hold at least 1 tokens of text, but holds 0"):
        sequences(Text([" "], "empty"), tokenizer(), 8)
    with pytest.raises(DataError, match="short must hold at least 2 tokens of text, but holds 1"):
        sequences(Text(["dog"], "short"), NoSpecialTokens(), 8)  # type: ignore[arg-type]


def test_documents_of_a_json_lines_file_keep_their_line_breaks(tmp_path: Path) -> None:
    documents = ["the dog\n\nruns", "a cat"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": entry}) + "\n" for entry in documents))
    assert list(read_text((path,)).lines) == documents
    path.write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: must have `text`, but has words"):
        read_text((path,))


def test_unknown_words_of_wikitext_can_be_left_out() -> None:
    assert from_wikitext(" <unk> was a <unk> , then <unk> ", "") == "was a, then"


# Loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", [True, False])
def test_the_loss_is_that_of_transformers(kind: str, apart: bool, tmp_path: Path) -> None:
    """Also with an encoder that is not zero, and with padding."""
    task = CausalLMTask(CausalConfig(**causal(tmp_path, kind, data={"apart": apart})))
    data = task.prepare(RunFolder(tmp_path / "run"))
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / kind).eval()
    sites = floater.Sites("qkv", targets=LLAMA_TARGETS if kind == "llama" else None)
    floater.attach(model, floater.FlowConfig(initial_scale=0.5), sites=sites)
    inputs = task.collate(data.tokenizer)([data.valid[number] for number in range(8)])
    count = int(inputs["labels"].ne(-100).sum())
    assert bool(inputs["attention_mask"].eq(0).any()) == apart
    with torch.no_grad():
        logits = model(**inputs).logits
        expected = float(model(**inputs).loss)
        assert float(task.loss(model, inputs)) / count == pytest.approx(expected, abs=1e-6)
        outputs = task.predict(model, inputs)
        assert float(outputs["loss"].sum()) / count == pytest.approx(expected, abs=1e-6)
        assert int(outputs["tokens"].sum()) == count
        right = logits[:, :-1].argmax(-1).eq(inputs["labels"][:, 1:])
        assert int(outputs["right"].sum()) == int(right.sum())
        assert torch.equal(model(**inputs).logits, logits), "the hook is gone"


@pytest.mark.parametrize("name", CAUSAL)
def test_the_loss_is_that_of_transformers_in_every_architecture(name: str) -> None:
    model, inputs = make(name).eval(), batch(name)
    floater.attach(model, floater.FlowConfig(initial_scale=0.5))
    labels = inputs["input_ids"].clone()
    labels[:, 0], labels[1, 4:] = -100, -100
    inputs["labels"] = labels
    task = CausalLMTask.__new__(CausalLMTask)
    with torch.no_grad():
        expected = float(model(**inputs).loss)
        loss = float(task.loss(model, inputs)) / int(labels.ne(-100).sum())
    assert loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_encoder_gives_the_loss_of_the_base_exactly(kind: str, tmp_path: Path) -> None:
    task = CausalLMTask(CausalConfig(**causal(tmp_path, kind)))
    losses = []
    for variant in task.variants(0).values():
        assert isinstance(variant, CausalLMTask)
        data = variant.prepare(RunFolder(tmp_path / "run"))
        model = variant.build_model(data).eval()
        inputs = variant.collate(data.tokenizer)([data.valid[number] for number in range(8)])
        with torch.no_grad():
            losses.append(float(variant.loss(model, inputs)))
    assert losses[0] == losses[1] == losses[2] > 0


# Runs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base, control and dynamics."""
    folder = tmp_path_factory.mktemp("causal")
    settings = causal(folder, request.param)
    compare(CausalLMTask(CausalConfig(**settings)), folder / "out", console=QUIET)
    (folder / "kind").write_text(request.param)
    return folder


def test_the_base_is_frozen_and_the_control_has_no_dynamics(compared: Path) -> None:
    kind = (compared / "kind").read_text()
    task = CausalLMTask(CausalConfig(**causal(compared, kind)))
    base = AutoModelForCausalLM.from_pretrained(compared / kind).state_dict()
    for variant in ("floater-0", "start-0"):
        model: Any = load_trained(task, compared / "out" / variant / "model")
        state = model.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in base.items()), variant
        flow = model.floater.encoder
        assert flow.initial.abs().sum() > 0
        assert bool(flow.dynamics.second.weight.any()) == (variant == "floater-0")


def test_all_variants_are_in_the_table(
    compared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = Comparison.from_file(compared / "out" / COMPARISON)
    assert comparison.base == "base"
    assert not comparison.more_is_better
    assert comparison.main == "loss"
    assert comparison.start["0"].identical
    assert [(row.variant, row.measure) for row in comparison.rows] == [
        (variant, measure) for variant in ("start", "floater") for measure in ("loss", "accuracy")
    ]
    for row in comparison.rows:
        assert row.low <= row.difference <= row.high
    scores = RunFolder(compared / "out" / "base-0").scores().sets["valid"].scores
    assert comparison.rows[0].base == pytest.approx(scores["loss"].score)
    assert scores["perplexity"].score == pytest.approx(np.exp(scores["loss"].score))
    assert "|causal lm|packed|length:24|" in scores["loss"].signature
    path = compared / "config.yaml"
    path.write_text(yaml.safe_dump(causal(compared, (compared / "kind").read_text())))
    shutil.copytree(compared / "out", compared / "all" / "config")
    table = said(monkeypatch, capsys, "compare", path, "--out", compared / "all", "--resume")
    assert "| config | valid | **loss** | floater |" in table
    assert (compared / "all" / "comparison.md").is_file()


def test_a_run_is_evaluated_on_any_text_and_reported(
    compared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compared / "new.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in text(9, 7)))
    folder, other = compared / "out" / "floater-0", compared / "out" / "start-0"
    line = said(
        monkeypatch, capsys, "evaluate", folder, "--data", path, "--against", other
    )  # the base has no model of its own
    assert "floater-0, new: loss " in line
    assert "perplexity " in line
    assert f"new against {other}: " in line
    said(monkeypatch, capsys, "report", folder, "--out", compared / "report.html")
    assert "causal_lm" in (compared / "report.html").read_text()


class Stop(Exception):
    """Ends a run in the middle."""


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise Stop


def test_a_resumed_run_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CausalLMTask(CausalConfig(**causal(tmp_path)))
    whole = run(task, tmp_path / "whole", console=QUIET)
    with monkeypatch.context() as patch:

        def stopping(*args: Any) -> Any:
            trainer = build_trainer(*args)
            trainer.add_callback(StopAfter(3))
            return trainer

        patch.setattr("floater.training.run.build_trainer", stopping)
        with pytest.raises(Stop):
            run(task, tmp_path / "parts", console=QUIET)
    parts = run(task, tmp_path / "parts", resume=True, console=QUIET)
    first, second = (load_file(folder.model / "floater.safetensors") for folder in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_all_weights_can_be_trained(tmp_path: Path) -> None:
    """Then the base is trained as well, and p(start) alone is no variant."""
    config = CausalConfig(**causal(tmp_path, training={"part": "all"}))
    variants = config.variants()
    assert list(variants) == ["base", "floater"]
    assert variants["base"].training.part == "all"
    with pytest.raises(ConfigError, match="`positions` must have an encoder to compare"):
        config.without_encoder().variants()


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "no/such/folder/at/all"}}, "`name` of `model` must be a folder with"),
        ({"data": {"train": ["no/such.txt"]}}, "no/such.txt must be a text file, but there is no"),
        ({"data": {"hub": {}}}, "give either `train` and `valid`"),
        ({"data": {"share": 0.15}}, "share"),
        ({"max_length": 1}, "`max_length` must leave room for a token to predict after 1, but is"),
        ({"training": {"part": "some"}}, "part"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(causal(tmp_path, **changes)))
    assert message in mistake(monkeypatch, capsys, "train", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def refused(
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(causal(folder, model={"name": str(model)})))
    return mistake(monkeypatch, capsys, "train", path, "--out", folder / "run")


def test_a_model_that_sees_what_it_predicts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "bert", "bert with head")
    line = refused(tmp_path, model, monkeypatch, capsys)
    assert "bert sees the tokens that it predicts; use the task masked_lm" in line


def test_a_model_without_head_or_safetensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_causal_model(tmp_path / "model")
    whole: Any = GPT2LMHeadModel.from_pretrained(model)
    whole.config.tie_word_embeddings = False
    whole.transformer.save_pretrained(model)
    line = refused(tmp_path, model, monkeypatch, capsys)
    assert "has no weights for the head" in line
    torch.save(whole.state_dict(), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    line = refused(tmp_path, model, monkeypatch, capsys)
    assert "it must hold weights in safetensors" in line
