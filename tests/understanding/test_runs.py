from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import TrainerCallback

from command_line import mistake, said
from floater.encoders import Flow
from floater.errors import ConfigError, DataError, RunError
from floater.ode import discrete
from floater.runs.comparison import COMPARISON, Comparison, StartCheck
from floater.runs.folder import RunFolder
from floater.tasks.glue.task import GlueConfig, GlueTask
from floater.tasks.understanding.models import load_trained, locate
from floater.training.build_trainer import build_trainer
from floater.training.run import run
from floater.training.trainer import SafeTrainer

from .worlds import glue, rte, write_lines, write_model

KEEPING = {"flow_lr_multiple": 10.0, "save_every": 1, "keep": 9, "keep_checkpoints": True}


def losses(folder: RunFolder) -> list[float]:
    return [row["loss"] for row in folder.metrics() if "loss" in row]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.model / "model.safetensors")


def train(settings: dict[str, Any], path: Path, **options: Any) -> RunFolder:
    return run(GlueTask(GlueConfig(**settings)), path, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def trained(world: Path) -> RunFolder:
    """A run with an encoder that other tests use."""
    return train(glue(world, training=KEEPING), world / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("roberta", "rte"), ("bert", "sst2"), ("bert", "stsb")])
def test_frozen_zero_dynamics_leave_every_bit_as_it_is(
    kind: str, name: str, world: Path, tmp_path: Path
) -> None:
    """With dropout and weight decay, through all of fine-tuning: losses, weights, predictions."""
    settings = glue(world, name, kind, training={"freeze_flow": True})
    config = GlueConfig(**settings)
    runs = {
        variant: run(GlueTask(variant_config), tmp_path / variant)
        for variant, variant_config in config.variants().items()
    }
    assert (
        runs["floater"].facts()["position_parameters"]
        > 0
        == runs["base"].facts()["position_parameters"]
    )
    assert losses(runs["base"]) == losses(runs["floater"])
    assert len(losses(runs["base"])) == 4
    with_flow = weights(runs["floater"])
    for key, tensor in weights(runs["base"]).items():
        assert torch.equal(tensor, with_flow[key]), key
    predictions = [(folder.predictions / "valid.json").read_text() for folder in runs.values()]
    assert predictions[0] == predictions[1]


def test_trained_dynamics_move_and_are_measured(
    world: Path, trained: RunFolder, tmp_path: Path
) -> None:
    base = run(GlueTask(GlueConfig(**glue(world)).without_encoder()), tmp_path / "base")
    assert losses(base)[0] == losses(trained)[0], "the variants begin as one model"
    assert losses(base) != losses(trained)
    model: Any = load_trained(GlueTask(GlueConfig(**glue(world))), trained.model)
    assert any(parameter.abs().sum() > 0 for parameter in [model.floater.encoder.initial])
    assert model.floater.positions == "keep"
    facts = trained.facts()
    assert facts["finished"]
    assert facts["positions"] == "flow qkv"
    assert facts["data"]["train"]["rows"] == 48
    assert (trained.path / "positions.safetensors").is_file()
    rows = json.loads((trained.predictions / "valid.json").read_text())
    assert len(rows) == 20
    assert {row["prediction"] for row in rows} <= {"entailment", "not_entailment"}
    score = trained.scores().sets["valid"].scores["accuracy"]
    assert score.signature.startswith("accuracy|glue rte|scikit-learn:")


class Stop(Exception):
    pass


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise Stop


def test_a_resumed_run_ends_in_the_same_bits(
    world: Path, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = glue(world, training=KEEPING)
    with monkeypatch.context() as patch:

        def stopping(*args: Any) -> Any:
            trainer = build_trainer(*args)
            trainer.add_callback(StopAfter(3))
            return trainer

        patch.setattr("floater.training.run.build_trainer", stopping)
        with pytest.raises(Stop):
            train(settings, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already; continue it with --resume"):
        train(settings, tmp_path / "run")
    with pytest.raises(
        RunError, match=r"was started with training\.lr = 0\.001, but the config now says 0\.002"
    ):
        train(
            glue(world, training={**settings["training"], "lr": 0.002}),
            tmp_path / "run",
            resume=True,
        )
    folder = train({**settings, "compare": {"seeds": [7]}}, tmp_path / "run", resume=True)
    assert losses(folder) == losses(trained)
    for key, tensor in weights(trained).items():
        assert torch.equal(tensor, weights(folder)[key]), key
    before = folder.facts()["training_seconds"]
    again = train(settings, tmp_path / "run", resume=True)
    assert again.facts()["training_seconds"] == before


def test_checkpoints_are_deleted_only_after_the_run_is_marked_finished(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[bool, bool]] = []
    clean_up = GlueTask.clean_up

    def observed(task: GlueTask, folder: RunFolder) -> None:
        states.append((folder.finished(), folder.checkpoints.exists()))
        clean_up(task, folder)

    monkeypatch.setattr(GlueTask, "clean_up", observed)
    folder = train(glue(world, training={"updates": 1}), tmp_path / "run")
    assert states == [(True, True)]
    assert not folder.checkpoints.exists()


def test_accumulated_batches_are_one_big_batch(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row in one update, in one batch or in several of unequal sizes; one reverse sweep."""
    curves, sweeps = [], []
    sweep = discrete.reverse_sweep

    def counted(*arguments: Any) -> Any:
        sweeps.append(1)
        return sweep(*arguments)

    monkeypatch.setattr(discrete, "reverse_sweep", counted)
    for batch, accumulate in ((48, 1), (20, 3)):
        settings = glue(
            world,
            "stsb",
            model={"dropout": 0.0},
            training={"batch": batch, "accumulate": accumulate, "updates": 2},
        )
        curves.append(losses(train(settings, tmp_path / str(batch))))
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert len(sweeps) == 2 + 2


def test_evaluate_on_any_file(
    world: Path,
    trained: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    other = rte(tmp_path / "other.tsv", 30, 9)
    output = said(monkeypatch, capsys, "evaluate", trained.path, "--data", other)
    assert "other: accuracy" in output
    assert "(30 examples)" in output
    assert trained.scores().sets["other"].examples == 30
    unlabelled = write_lines(
        tmp_path / "test.tsv",
        ["index\tsentence1\tsentence2", "0\tthe dog\ta cat runs", "1\tbig\tsmall"],
    )
    assert "no labels, so no score" in said(
        monkeypatch, capsys, "evaluate", trained.path, "--data", unlabelled
    )
    assert len(json.loads((trained.predictions / "test.json").read_text())) == 2
    output = said(monkeypatch, capsys, "evaluate", trained.path, "--against", trained.path)
    assert "+0.00 accuracy (95 % +0.00 to +0.00, p = 1.000" in output
    assert mistake(monkeypatch, capsys, "evaluate", trained.path, "--beam", 3).endswith(
        f"`--beam` does not apply to {trained.path}, which is a run of glue; use --against, "
        "--beyond, --data, --model, --name."
    )
    longest = trained.facts()["longest"]
    words = " ".join(["dog"] * (longest + 5))
    long = write_lines(tmp_path / "long.tsv", ["index\tsentence1\tsentence2", f"0\t{words}\ta"])
    arguments = ("evaluate", trained.path, "--beyond", "error")
    assert mistake(monkeypatch, capsys, *arguments).endswith(
        f"`--beyond` needs `--name`: {trained.path} stores the scores of its own weights as "
        "'valid'."
    )
    said(monkeypatch, capsys, *arguments, "--name", "again")
    message = mistake(monkeypatch, capsys, *arguments, "--data", long)
    assert re.search(
        rf"An input of \d+ tokens .* of training \(.* those of {longest} tokens\)", message
    )


@pytest.mark.slow
def test_both_variants_from_one_config(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "tiny-rte.yaml"
    path.write_text(yaml.safe_dump(glue(world, training={"updates": 2, "keep_model": False})))
    output = said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out")
    assert "| tiny-rte | valid | **accuracy** | floater |" in output
    assert re.search(r"counted as the paper does: \d wins, \d losses, \d ties", output)
    assert "before training: the variants' logits on 20 inputs are identical to the bit." in output
    assert (tmp_path / "out" / "comparison.md").read_text().strip() == output.strip()
    comparison = Comparison.from_file(tmp_path / "out" / "tiny-rte" / COMPARISON)
    (row,) = comparison.rows
    assert (row.variant, row.test_set, row.measure) == ("floater", "valid", "accuracy")
    assert len(row.seeds["base"]) == 2
    assert comparison.start["1"].identical
    for name in ("base-0", "base-1", "floater-0", "floater-1"):
        folder = RunFolder.existing(tmp_path / "out" / "tiny-rte" / name)
        assert folder.finished()
        assert not folder.model.exists()
    assert "holds runs already" in mistake(
        monkeypatch, capsys, "compare", path, "--out", tmp_path / "out"
    )
    monkeypatch.setattr(GlueTask, "build_model", None)  # finished runs are not repeated
    assert (
        said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--resume") == output
    )


def test_the_check_before_training_detects_a_difference(world: Path) -> None:
    settings = glue(world, positions={"encoder": {"kind": "flow", "initial_scale": 0.5}})
    task = GlueTask(GlueConfig(**settings))
    start = task.check_identical_start(list(task.variants(0).values()))
    assert start is not None
    assert start == StartCheck(identical=False, inputs=20, fresh_in_place_of_trained=False)


def test_half_precision_checkpoints_are_trained_in_full(tmp_path: Path) -> None:
    settings = glue(tmp_path, training={"updates": 1})
    model = write_model(tmp_path / "half", dtype=torch.float16)
    folder = train({**settings, "model": {"name": str(model)}}, tmp_path / "run")
    assert {tensor.dtype for tensor in weights(folder).values()} == {torch.float32}


def test_models_are_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_package"
    (package / "weights").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "weights" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Path(locate("pip:a_package/weights")) == package / "weights"
    assert Path(locate(str(package / "weights"))) == package / "weights"
    assert locate("FacebookAI/roberta-base") == "FacebookAI/roberta-base"
    for name, message in (
        ("pip:a_package", "must be a folder with a config.json"),
        ("pip:no_such_package/weights", "'no_such_package' is not one"),
        ("../nowhere/model", "but ../nowhere/model is none of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            locate(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"name": "../no/such/folder"}},
            "`name` of `model` must be a folder with a config.json, a name on the hub",
        ),
        ({"data": {"name": "rtx"}}, "data: `name` of GlueData: input should be 'cola', 'sst2'"),
        (
            {"training": {"part": "flow"}, "positions": {"encoder": None}},
            "`part` of `training` is flow, which needs an encoder",
        ),
        (
            {"dynamics": "no/such/run"},
            (
                "`dynamics` must be a run or a folder with a trained encoder, but no/such/run is "
                "neither"
            ),
        ),
        ({"trainig": {}}, "GlueConfig has no key `trainig`; did you mean `training`?"),
        (
            {"data": {"train": "no/such/file.tsv"}},
            "no/such/file.tsv must be a text file, but there is none",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(glue(world, **changes)))
    assert message in mistake(monkeypatch, capsys, "train", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_runs_own_scores_are_never_replaced_by_others(
    world: Path,
    trained: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Not by a file that has their name, nor by other weights, nor by comparing with another
    run.
    """
    before = (trained.path / "scores.json").read_text()
    called_valid = rte(tmp_path / "valid.tsv", 6, 9)
    assert "give --name" in mistake(
        monkeypatch, capsys, "evaluate", trained.path, "--data", called_valid
    )
    assert "`--model` needs `--name`" in mistake(
        monkeypatch, capsys, "evaluate", trained.path, "--model", trained.model
    )
    stranger = train(glue(world, "sst2", training={"updates": 1}), tmp_path / "sst2")
    theirs = (stranger.path / "scores.json").read_text()
    wrong = mistake(monkeypatch, capsys, "evaluate", trained.path, "--against", stranger.path)
    assert "must be a run of the same task (glue rte), but" in wrong
    wrong = mistake(
        monkeypatch,
        capsys,
        "evaluate",
        trained.path,
        "--model",
        stranger.model,
        "--name",
        "strange",
    )
    assert (
        "must predict the labels entailment, not_entailment, but predicts 0, 1: the weights of "
        "another task." in wrong
    )
    assert (trained.path / "scores.json").read_text() == before
    assert (stranger.path / "scores.json").read_text() == theirs
    unlabelled = write_lines(
        tmp_path / "bare.tsv", ["index\tsentence1\tsentence2", "0\tthe dog\ta cat runs"]
    )
    wrong = mistake(
        monkeypatch,
        capsys,
        "evaluate",
        trained.path,
        "--data",
        unlabelled,
        "--against",
        trained.path,
    )
    assert "must have labels for a comparison" in wrong


def test_later_evaluations_do_not_stop_a_comparison(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rte.yaml"
    path.write_text(yaml.safe_dump(glue(world, training={"updates": 1}, compare={"seeds": [0]})))
    output = said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out")
    base, other = (tmp_path / "out" / "rte" / name for name in ("base-0", "floater-0"))
    said(monkeypatch, capsys, "evaluate", base, "--against", other)
    said(monkeypatch, capsys, "evaluate", base, "--data", rte(tmp_path / "more.tsv", 8, 3))
    assert (
        said(monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--resume") == output
    )


def test_a_diverged_run_has_no_score(world: Path, tmp_path: Path) -> None:
    settings = glue(
        world, positions={"encoder": None}, training={"lr": 1e30, "updates": 12, "warmup": 0.0}
    )
    with pytest.raises(
        RunError,
        match=r"of update \d+ must be finite, but is (nan|inf): the training diverged\. Lower",
    ):
        train(settings, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").scores().sets
    assert not RunFolder(tmp_path / "run").model.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "`seed` of GlueConfig"),
        ({"seed": 2**32}, "`seed` of GlueConfig"),
        ({"compare": {"seeds": [0, 0]}}, "`seeds` must be different, but are 0, 0"),
        (
            {"data": {"more": {"train": "a.tsv"}}},
            "must be plain and other than train and valid, but one is 'train'",
        ),
        (
            {"data": {"more": {"a/b": "a.tsv"}}},
            "must be plain and other than train and valid, but one is 'a/b'",
        ),
        ({"positions": {"encoder": None}}, "`positions` must have an encoder to compare"),
    ],
)
def test_misleading_settings_are_refused(world: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        GlueConfig(**glue(world, **change)).variants()


def test_short_inputs_and_models_with_an_encoder_are_refused_at_the_start(
    world: Path, trained: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="`max_length` must be at least"):
        train(glue(world, max_length=3), tmp_path / "run")
    with pytest.raises(ConfigError, match="must be a model without a FLOATER encoder"):
        train(glue(world, model={"name": str(trained.model)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_flow_alone_is_compared_with_the_untrained_base(world: Path) -> None:
    variants = GlueConfig(**glue(world, training={"part": "flow"})).variants()
    assert variants["base"].training.part == "nothing"
    assert variants["floater"].training.part == "flow"


def test_a_run_that_stops_between_micro_batches_leaves_the_flow_as_it_was(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Flow] = []
    step = SafeTrainer.training_step

    def stopped(self: SafeTrainer, model: Any, *arguments: Any) -> Any:
        if seen:
            raise KeyError("the second batch")
        seen.extend(module for module in model.modules() if isinstance(module, Flow))
        return step(self, model, *arguments)

    monkeypatch.setattr(SafeTrainer, "training_step", stopped)
    settings = glue(world, training={"batch": 4, "accumulate": 3, "updates": 2})
    with pytest.raises(KeyError, match="the second batch"):
        train(settings, tmp_path / "run")
    (flow,) = seen
    flow.zero_grad()
    flow.table(5).sum().backward()
    assert all(weight.grad is not None for weight in flow.parameters())
