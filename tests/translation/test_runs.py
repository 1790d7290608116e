from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel
from transformers.utils import logging

import floater
from floater import recipes
from floater.errors import ArgumentError, ConfigError, LengthError, RunError
from floater.ode import kernel
from floater.runs.folder import RunFolder
from floater.tasks.translation import averaging, corpus, evaluation
from floater.tasks.translation import task as translation
from floater.tasks.translation.averaging import average_run
from floater.tasks.translation.config import SplitFiles, TranslationConfig
from floater.tasks.translation.corpus import Pairs
from floater.tasks.translation.decoding import Translator
from floater.training import extract_encodings
from floater.training.average import average
from floater.training.checkpoints import checkpoints
from floater.training.task import EvaluationRequest

from .corpora import pairs, settings, train, write_config

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "translation").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid(path: Path) -> None:
    found = recipes.read(path)
    config = TranslationConfig(**found)
    assert TranslationConfig(**config.dump()) == config
    if "Do not train it directly" not in path.read_text():
        assert (
            "floater train "
            f"configs/{path.relative_to(path.parents[path.parts[::-1].index('configs') - 1])}"
            in path.read_text()
        )


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trained run that other tests use."""
    folder = tmp_path_factory.mktemp("vanilla")
    train(TranslationConfig(**settings(folder)), folder / "run")
    return folder / "run"  # type: ignore[return-value]


ENCODERS: dict[str, dict[str, Any]] = {
    "own": {},
    "sinusoidal": {"encoder": {"kind": "sinusoidal"}, "sites": "blocks"},
    "learned": {"encoder": {"kind": "learned", "max_length": 64}, "sites": "input"},
    "recurrent scalar": {"encoder": {"kind": "recurrent"}, "sites": "blocks"},
    "recurrent vector": {
        "encoder": {"kind": "recurrent", "layers": 2, "input": "vector"},
        "sites": "qkv",
    },
    "flow input": {
        "encoder": {"kind": "flow", "pace": "free", "zero_init": False},
        "sites": "input",
    },
    "flow blocks": {
        "encoder": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.1},
        "sites": "blocks",
    },
    "flow qkv": {"encoder": {"kind": "flow"}, "sites": "qkv", "own": "keep"},
    "rotary": {"encoder": {"kind": "rotary"}, "sites": "qkv"},
    "relative": {"encoder": {"kind": "relative", "distance": 4}, "sites": "qkv"},
    "none": {"encoder": {"kind": "none"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_every_kind_trains_and_translates(tmp_path: Path, name: str) -> None:
    config = TranslationConfig(
        **settings(tmp_path, positions=ENCODERS[name], training={"updates": 2, "save_every": 1})
    )
    folder = train(config, tmp_path / "run")
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert len(losses) == 2
    assert all(torch.isfinite(torch.tensor(losses)))
    scores = folder.scores().sets["test"]
    assert set(scores.scores) == {"bleu", "chrf", "exact"}
    assert (scores.examples, scores.settings["beam"]) == (12, 2)
    assert len((folder.predictions / "test.txt").read_text().splitlines()) == 12
    facts = folder.facts()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["data"]["train"]["pairs"] == 120
    assert TranslationConfig(**recipes.read(folder.path / "config.yaml")) == config
    long = " ".join(["7"] * 3000)
    translator = evaluation.load(folder.path)
    translator.config = translator.config.model_copy(update={"beam": 1, "max_ratio": 0.001})
    past_range = pytest.warns(floater.RangeWarning, match=r"A source of 3,001 tokens")
    if name == "relative":  # it has no times: nothing is new to it, and a warning would be an error
        assert len(translator.translate([long])) == 1
    elif name == "learned":
        with past_range, pytest.raises(LengthError, match="has 64 positions"):
            translator.translate([long])
    else:
        with past_range:
            assert len(translator.translate([long])) == 1


def test_a_run_says_that_its_flow_is_solved_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(name: str, **training: Any) -> bool:
        given = settings(
            tmp_path,
            positions=ENCODERS[name],
            training={"updates": 1, "save_every": 1, **training},
        )
        train(TranslationConfig(**given), tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        return "floater's compiled kernel is not there" in capsys.readouterr().err

    monkeypatch.setattr(kernel, "_loaded", [None])
    assert told("flow qkv")
    assert not told("flow qkv", freeze_flow=True)
    assert not told("sinusoidal")
    monkeypatch.setenv("FLOATER_KERNEL", "0")  # a choice
    assert not told("flow qkv")


def test_metrics_count_the_evaluations_of_a_flow(tmp_path: Path) -> None:
    def counted(name: str) -> list[int | None]:
        given = settings(tmp_path, positions=ENCODERS[name], training={"updates": 2})
        folder = train(TranslationConfig(**given), tmp_path / name)
        return [row.get("evaluations") for row in folder.metrics() if "loss" in row]

    counts = counted("flow qkv")
    assert len(counts) == 2
    assert all(count is not None and count >= 2 + 6 for count in counts)  # a step of Dopri5, begun
    assert counted("sinusoidal") == [None, None]


@pytest.mark.slow
def test_a_run_reads_its_test_set_and_loads_its_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits: list[str] = []
    loads: list[Path] = []
    read, load = corpus.load, floater.from_pretrained

    def counted_read(data: Any, split: Any) -> Any:
        splits.append(split)
        return read(data, split)

    def counted_load(model_class: Any, folder: Path) -> Any:
        loads.append(folder)
        return load(model_class, folder)

    monkeypatch.setattr(corpus, "load", counted_read)
    for module in (averaging, evaluation, extract_encodings):
        monkeypatch.setattr(module, "from_pretrained", counted_load)
    training = {"updates": 2, "save_every": 1}
    folder = train(TranslationConfig(**settings(tmp_path, training=training)), tmp_path / "run")
    assert sorted(splits) == ["test", "train", "valid"]
    assert loads == [folder.checkpoints / "checkpoint-2"]


def test_settings_of_the_process_are_restored(tmp_path: Path) -> None:
    threads, bars = torch.get_num_threads(), logging.is_progress_bar_enabled()
    torch.set_flush_denormal(False)
    logging.enable_progress_bar()
    denormal = torch.ones((), dtype=torch.int64).view(torch.float64)  # 5e-324
    try:
        training = {"updates": 2, "save_every": 1, "threads": threads + 1}
        train(TranslationConfig(**settings(tmp_path, training=training)), tmp_path / "run")
        assert torch.get_num_threads() == threads
        assert denormal * 1 != 0
        assert logging.is_progress_bar_enabled()
    finally:
        torch.set_flush_denormal(True)  # as all tests
        if not bars:
            logging.disable_progress_bar()


def test_training_learns(tmp_path: Path) -> None:
    config = TranslationConfig(
        **settings(
            tmp_path,
            model={"layers": 1, "dim": 32, "feed_forward": 64, "dropout": 0.0},
            training={
                "updates": 150,
                "warmup": 40,
                "lr": 0.01,
                "save_every": 50,
                "evaluate_every": 150,
                "log_every": 25,
            },
        )
    )
    folder = train(config, tmp_path / "run")
    rows = list(folder.metrics())
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] / 2
    assert next(row for row in rows if "eval_bleu" in row)["eval_loss"] < 1.5
    assert all(row["tokens_per_second"] > 0 for row in rows if "loss" in row)


def test_curves_are_written_for_tensorboard(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    training = {"updates": 2, "save_every": 1, "tensorboard": True}
    folder = train(TranslationConfig(**settings(tmp_path, training=training)), tmp_path / "run")
    events = event_accumulator.EventAccumulator(str(folder.path / "tensorboard")).Reload()
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses)


def test_validation_translates_as_many_lines_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated = []
    translate = Translator.translate

    def counting(self: Translator, lines: list[str], **kwargs: Any) -> list[str]:
        translated.append(len(lines))
        return translate(self, lines, **kwargs)

    def validation(name: str, **changes: Any) -> dict[str, float]:
        given = settings(tmp_path, training={"updates": 2, "save_every": 1, "evaluate_every": 2})
        given["decoding"] = {**given.get("decoding", {}), **changes}
        folder = train(TranslationConfig(**given), tmp_path / name)
        (row,) = (row for row in folder.metrics() if "eval_loss" in row)
        return row

    monkeypatch.setattr(Translator, "translate", counting)
    every = validation("every")
    lines, test_lines = translated
    for name, count in (("none", 0), ("two", 2), ("more", lines + 1)):
        translated.clear()
        row = validation(name, valid_lines=count)
        assert translated == ([min(count, lines)] if count else []) + [test_lines]
        assert row["eval_loss"] == every["eval_loss"]
        assert ("eval_bleu" in row) == (count > 0)
        if count > lines:
            assert row["eval_bleu"] == every["eval_bleu"]


def test_patience_needs_the_validation_bleu(tmp_path: Path) -> None:
    given = settings(tmp_path, training={"patience": 1})
    with pytest.raises(ConfigError, match="`patience` of `training` waits for a better"):
        TranslationConfig(**{**given, "decoding": {"valid_lines": 0}})


@pytest.mark.slow
def test_a_warm_start_begins_as_the_vanilla_model(vanilla: Path, tmp_path: Path) -> None:
    words = evaluation.load(vanilla).vocabulary
    positions = {"encoder": {"kind": "flow"}, "sites": "qkv", "own": "keep"}
    config = TranslationConfig(**settings(tmp_path, positions=positions, init_from=str(vanilla)))
    warm = translation.make_model(config, words)
    warm.eval()  # type: ignore[no-untyped-call]
    base = floater.from_pretrained(MarianMTModel, vanilla / "model").eval()
    ids = torch.tensor([words.encode(["1 2 3 4"])[0]])
    inputs = {"input_ids": ids, "decoder_input_ids": torch.tensor([[1, 5, 6]])}
    with torch.no_grad():
        assert torch.equal(warm(**inputs).logits, base(**inputs).logits)
        small = translation.make_model(
            TranslationConfig(**{**config.dump(), "init_scale": 0.01}), words
        )
        small.eval()  # type: ignore[no-untyped-call]
        assert not torch.equal(small(**inputs).logits, base(**inputs).logits)
        assert torch.allclose(small(**inputs).logits, base(**inputs).logits, atol=0.5)
    folder = train(config, tmp_path / "warm")
    assert folder.facts()["positions"] == "flow qkv"
    assert folder.facts()["position_parameters"] > 0


@pytest.mark.slow
def test_translation_keeps_order_count_and_empty_lines(vanilla: Path, tmp_path: Path) -> None:
    lines = pairs(1000, 5)[0]
    lines[3] = lines[500] = lines[-1] = ""
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "in.txt").write_text(text)
    command = [sys.executable, "-m", "floater", "translate", str(vanilla), "--beam", "1"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, env=_environment()
    )
    made = done.stdout.split("\n")
    assert made.pop() == ""
    assert len(made) == 1000
    assert [i for i, line in enumerate(lines) if not line] == [3, 500, 999]
    assert made[3] == made[500] == made[999] == ""
    translator = evaluation.load(vanilla)
    alone = [translator.translate([lines[i]], beam=1)[0] for i in range(0, 1000, 97)]
    assert alone == [made[i] for i in range(0, 1000, 97)]
    subprocess.run(
        [*command, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")],
        check=True,
        env=_environment(),
    )
    assert (tmp_path / "out.txt").read_text() == done.stdout


def test_evaluation_with_bins_and_against_another_run(
    vanilla: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = (tmp_path / "x.en", tmp_path / "x.de")
    for path, lines in zip((source, target), pairs(30, 9), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    data = TranslationConfig(**settings(tmp_path)).data
    data = data.model_copy(update={"test": SplitFiles(source=source, target=target)})
    found = corpus.load(data, "test")
    assert found is not None
    folder = RunFolder.existing(vanilla)
    translator = evaluation.load(vanilla)
    scores = evaluation.evaluate(
        folder, translator, found, name="x", edges=[8, 12], paper=True, beam=1
    )
    assert sum(part.examples for part in scores.bins.values()) == 30
    assert "paper's BLEU" in evaluation.describe(scores)
    same = evaluation.compare(folder, folder, "x")
    assert same.difference == 0
    assert same.p_value == 1


def test_averages_are_means_and_leave_whole_numbers_alone(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        tensors = {
            "a": torch.full((2,), float(i)),
            "half": torch.tensor([i], dtype=torch.bfloat16),
            "count": torch.tensor([10 + i]),
        }
        save_file(tensors, tmp_path / str(i) / "model.safetensors")
    mean = average([tmp_path / str(i) for i in range(3)])
    assert torch.equal(mean["a"], torch.ones(2))
    assert mean["half"].dtype == torch.bfloat16
    assert torch.equal(mean["count"], torch.tensor([12]))


def test_the_model_of_a_run_is_the_mean_of_its_last_checkpoints(vanilla: Path) -> None:
    kept = checkpoints(vanilla / "checkpoints")
    assert [path.name for path in kept] == ["checkpoint-4", "checkpoint-6"]
    mean = average(kept)
    made = load_file(vanilla / "model" / "model.safetensors")
    for name, tensor in made.items():
        assert torch.equal(tensor, mean[name]), name


KILLER = """
import os, signal, sys
from floater import cli
from floater.training import trainer
kind, count = sys.argv.pop(1), int(sys.argv.pop(1))
seen = 0
def die(function):
    def wrapped(*args, **kwargs):
        global seen
        seen += 1
        if seen == count:
            if kind == "rename":
                (args[0] / "half").write_text("half-written")
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped
if kind in ("rename", "save"):
    trainer.publish = die(trainer.publish) if kind == "rename" else trainer.publish
    if kind == "save":
        trainer.save_solutions = die(trainer.save_solutions)
else:
    trainer.SafeTrainer.training_step = die(trainer.SafeTrainer.training_step)
cli.main()
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "positions",
    [
        {
            "encoder": {
                "kind": "flow",
                "pace": "free",
                "zero_init": False,
                "initial_scale": 0.3,
                "keep_for": 3,
            },
            "sites": "blocks",
        },
        pytest.param(
            {"encoder": {"kind": "flow"}, "sites": "qkv", "own": "keep"},
            marks=pytest.mark.torture,
        ),
    ],
    ids=["blocks, kept for 3 steps", "qkv"],
)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, positions: dict[str, Any]) -> None:
    kept = "keep_for" in positions["encoder"]
    training = {"updates": 14, "save_every": 4, "keep": 3, "accumulate": 2, "threads": 1}
    training["evaluate_every"] = 4 if kept else 5  # also where a checkpoint is made
    training["update_every"] = 1 if kept else 2
    config = write_config(tmp_path, positions=positions, training=training, data={"max_pairs": 100})
    command = ["train", str(config), "--out"]

    def start(out: Path, *more: str, script: tuple[str, ...] = ("-m", "floater")) -> int:
        line = [sys.executable, *script, *command, str(out), *more]
        return subprocess.run(line, capture_output=True, check=False, env=_environment()).returncode

    assert start(tmp_path / "whole") == 0
    killed = tmp_path / "killed"
    kills = [("step", 11, 4), ("rename", 1, 4)]
    if kept:
        kills = [*kills, ("save", 1, 4), ("step", 11, 8)]
    for kind, count, left in kills:
        assert (
            start(
                killed,
                *(("--resume",) if killed.exists() else ()),
                script=("-c", KILLER, kind, str(count)),
            )
            == -9
        )
        assert [path.name for path in checkpoints(killed / "checkpoints")][
            -1
        ] == f"checkpoint-{left}"
        assert not any((path / "half").exists() for path in checkpoints(killed / "checkpoints"))
    noted = RunFolder(killed).facts()["training_seconds"]
    assert start(killed, "--resume") == 0
    assert RunFolder(killed).facts()["training_seconds"] > noted > 0
    for name in (
        "model/model.safetensors",
        "model/floater.safetensors",
        "checkpoints/checkpoint-12/model.safetensors",
    ):
        one, other = (load_file(tmp_path / folder / name) for folder in ("whole", "killed"))
        assert one.keys() == other.keys()
        for key, tensor in one.items():
            assert torch.equal(tensor, other[key]), (name, key)
    rows = [
        [row for row in RunFolder(tmp_path / folder).metrics() if "loss" in row]
        for folder in ("whole", "killed")
    ]
    assert (
        [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == list(range(1, 15))
    )
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]
    assert not list((killed / "checkpoints").glob(".*"))


def _stop(*arguments: Any, **settings: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_can_be_made_longer_but_not_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = settings(tmp_path)
    folder = train(TranslationConfig(**made), tmp_path / "run")
    longer = TranslationConfig(**{**made, "training": {**made["training"], "updates": 8}})
    with monkeypatch.context() as patch:
        patch.setattr(translation, "evaluate", _stop)  # between new weights and their scores
        with pytest.raises(KeyboardInterrupt):
            train(longer, tmp_path / "run", resume=True)
    assert not folder.scores().sets
    train(longer, tmp_path / "run", resume=True)
    assert folder.facts()["updates"] == 8
    assert folder.scores().sets["test"].examples == 12
    whole = train(longer, tmp_path / "whole")
    one, other = (
        load_file(place / "checkpoints/checkpoint-8/model.safetensors")
        for place in (folder.path, whole.path)
    )
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    with pytest.raises(RunError, match="was trained for 8 updates, but the config says 6"):
        train(TranslationConfig(**made), tmp_path / "run", resume=True)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        path = checkpoints(whole.checkpoints)[-1] / name
        whole_bytes = path.read_bytes()
        path.write_bytes(whole_bytes[: len(whole_bytes) // 2])
        with pytest.raises(
            RunError, match=r"checkpoint-8\S* is damaged .*; remove the folder of that checkpoint"
        ):
            train(longer, tmp_path / "whole", resume=True)
        path.write_bytes(whole_bytes)


def test_averages_do_not_overwrite_what_is_there(vanilla: Path, tmp_path: Path) -> None:
    folder = RunFolder.existing(vanilla)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    for place in (tmp_path / "mine", tmp_path / "mine" / "precious.txt"):
        with pytest.raises(RunError, match="exists and is not an averaged model"):
            average_run(folder, 2, place)
    for _ in range(2):
        average_run(folder, 2, tmp_path / "averaged")
    translator = evaluation.load(vanilla, tmp_path / "averaged")
    assert translator.translate(["1 2 3"]) == evaluation.load(vanilla).translate(["1 2 3"])
    found = Pairs(["1 2"], ["zwei eins"], "x")
    with pytest.raises(ArgumentError, match="must be a plain name"):
        evaluation.evaluate(folder, translator, found, name="../out")


def test_a_warm_start_needs_the_same_model(vanilla: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"model": {"heads": 4}}, "was trained with model.heads = 2, but the config says 4"),
        ({"vocabulary": {"size": 310}}, "has a vocabulary of 300 entries, but the config says 310"),
    ):
        config = TranslationConfig(**settings(tmp_path, init_from=str(vanilla), **changes))
        with pytest.raises(RunError, match=message):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_warm_start_without_a_vocabulary_can_be_resumed(vanilla: Path, tmp_path: Path) -> None:
    made = settings(tmp_path, init_from=str(vanilla))
    del made["vocabulary"]
    config = TranslationConfig(**made)
    train(config, tmp_path / "warm")
    longer = TranslationConfig(**{**made, "training": {**made["training"], "updates": 8}})
    assert train(longer, tmp_path / "warm", resume=True).facts()["updates"] == 8


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    made = settings(tmp_path)
    config = TranslationConfig(**made)
    train(config, tmp_path / "run")
    longer = TranslationConfig(**{**made, "training": {**made["training"], "updates": 8}})
    target = Path(made["data"]["train"]["target"])
    lines = target.read_text().splitlines()
    target.write_text("".join(f"{line}\n" for line in [lines[1], lines[0], *lines[2:]]))
    with pytest.raises(
        RunError, match=r"was started with other train data \(target side\): .* has changed since"
    ):
        train(longer, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_two_processes_follow_one_that_accumulates(tmp_path: Path) -> None:
    positions = {"encoder": {"kind": "flow", "pace": "free", "zero_init": False}, "sites": "blocks"}
    losses, orders = {}, {}
    for name, accumulate, launcher in (
        ("one", 2, (sys.executable,)),
        (
            "two",
            1,
            (
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "2",
            ),
        ),
    ):
        training = {
            "updates": 20,
            "accumulate": accumulate,
            "save_every": 10,
            "evaluate_every": 10,
            "threads": 1,
        }
        config = write_config(
            tmp_path / name, positions=positions, training=training, model={"dropout": 0.0}
        )
        line = [
            *launcher,
            "-m",
            "floater",
            "train",
            str(config),
            "--out",
            str(tmp_path / name / "run"),
        ]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=_environment())
        assert done.returncode == 0, done.stderr[-2000:]
        folder = RunFolder(tmp_path / name / "run")
        losses[name] = [row["loss"] for row in folder.metrics() if "loss" in row]
        orders[name] = [row["eval_loss"] for row in folder.metrics() if "eval_loss" in row]
        assert json.loads((folder.path / "run.json").read_text())["processes"] == (
            2 if name == "two" else 1
        )
    assert len(losses["one"]) == len(losses["two"]) == 20
    assert losses["two"] == pytest.approx(losses["one"], abs=1e-4)
    assert orders["two"] == pytest.approx(orders["one"], abs=1e-4)


def test_a_folder_that_lost_its_config_is_not_overwritten(vanilla: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(vanilla, place)
    (place / "config.yaml").unlink()
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(RunError, match=r"holds run\.json but no config\.yaml, .*restore"):
            train(TranslationConfig(**settings(tmp_path, seed=3)), place, resume=resume)
    assert before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_record_of_a_later_version_is_refused(vanilla: Path, tmp_path: Path) -> None:
    shutil.copytree(vanilla, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for name, read in (("run.json", folder.facts), ("scores.json", folder.scores)):
        path = folder.path / name
        content = json.loads(path.read_text())
        del content["facts_sha256"]
        assert content["version"] == 2
        for version, message in (
            (3, "must have a version up to 2, but has 3; install a newer"),
            (0, "is damaged: its version must be an integer from 1 to 2, but is 0"),
            (True, "is damaged: its version must be an integer"),
            ("2", "is damaged: its version must be an integer"),
        ):
            path.write_text(json.dumps({**content, "version": version}))
            with pytest.raises(RunError, match=message):
                read()


def test_an_evaluation_keeps_the_bins_of_the_config(tmp_path: Path) -> None:
    decoding = {"beam": 1, "length_bins": [4, 8]}
    training = {"updates": 2, "save_every": 1}
    config = TranslationConfig(**settings(tmp_path, decoding=decoding, training=training))
    folder = train(config, tmp_path / "run")
    before = folder.scores().sets["test"].bins
    assert set(before) == {"0-4", "4-8", "8+"}
    translation.TranslationTask(config).evaluate(folder, EvaluationRequest(), Console(quiet=True))
    assert folder.scores().sets["test"].bins == before
