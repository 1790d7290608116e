"""Runs that diverge, are damaged, fill the disk, or are used by two processes at once."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import floater
from command_line import mistake, said
from floater import files
from floater.errors import ConfigError, RunError
from floater.runs import locks
from floater.runs.folder import RunFolder
from floater.runs.locks import LOCK, in_use
from floater.runs.scores import Score, SetScores
from floater.tasks.translation import averaging, evaluation
from floater.tasks.translation import task as translation
from floater.tasks.translation.averaging import AVERAGED, average_run
from floater.tasks.translation.config import DecodingConfig, TranslationConfig
from floater.training.average import average
from floater.training.checkpoints import checkpoints, remove_incomplete, verify
from floater.training.trainer import SafeTrainer

from .corpora import settings, train, write_config
from .damages import DAMAGES, command, copied

FLOW = {
    "encoder": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.1},
    "sites": "blocks",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, beside its config."""
    folder = tmp_path_factory.mktemp("whole")
    config = write_config(folder, positions=FLOW)
    train(TranslationConfig(**settings(folder, positions=FLOW)), folder / "run")
    assert config.exists()
    return folder / "run"


def half(whole: Path, place: Path) -> Path:
    """The same run, stopped after its fourth update."""
    copied(whole, place)
    for name in ("model", "predictions", "checkpoints/checkpoint-6"):
        shutil.rmtree(place / name)
    for name in ("scores.json", "positions.safetensors"):
        (place / name).unlink()
    return place


# Training that diverges ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "positions",
    [{}, {"encoder": {"kind": "learned", "max_length": 64}}, {"encoder": {"kind": "none"}}],
    ids=["own", "learned", "none"],
)
def test_a_run_that_diverges_stops_in_one_line(
    tmp_path: Path,
    positions: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = {"lr": 1e12, "updates": 40, "warmup": 1, "save_every": 1, "keep": 50}
    config = write_config(tmp_path, positions=positions, training=training)
    found = mistake(monkeypatch, capsys, "train", config, "--out", tmp_path / "run")
    assert "update " in found
    assert "must be finite, but is" in found
    assert "Lower `training.lr` (now 1e+12)" in found
    folder = RunFolder(tmp_path / "run")
    assert not folder.model.exists()
    assert not folder.scores().sets
    assert all(row.get("loss") != 0 for row in folder.metrics())
    for kept in checkpoints(folder.checkpoints):
        assert all(
            bool(tensor.isfinite().all())
            for tensor in load_file(kept / "model.safetensors").values()
        )
        assert kept.name in found or kept != checkpoints(folder.checkpoints)[-1]


@pytest.mark.parametrize("what", ["gradient", "weights", "validation"])
def test_each_thing_that_must_be_finite_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Update 3 goes wrong; checkpoint-2 is the last good one."""
    if what == "gradient":
        step = SafeTrainer.training_step

        def spoilt(self: SafeTrainer, model: Any, *args: Any) -> Any:
            loss = step(self, model, *args)
            if self.state.global_step == 2:
                next(model.parameters()).grad.view(-1)[0] = float("inf")
            return loss

        monkeypatch.setattr(SafeTrainer, "training_step", spoilt)
        message = "norm of the gradient of update 3 must be finite, but is (inf|nan)"
    elif what == "weights":
        save = SafeTrainer._save_checkpoint

        def broken(self: SafeTrainer, model: Any, trial: Any) -> None:
            if self.state.global_step == 4:
                with torch.no_grad():
                    next(self._bare.parameters()).view(-1)[5] = float("nan")
            save(self, model, trial)

        monkeypatch.setattr(SafeTrainer, "_save_checkpoint", broken)
        message = "after update 4 must be finite, but is nan"
    else:
        monkeypatch.setattr(
            translation, "validate", lambda *args: {"loss": float("nan"), "bleu": 0.0}
        )
        message = "The validation loss after update 3 must be finite, but is nan"
    config = TranslationConfig(**settings(tmp_path, training={"evaluate_every": 3}))
    with pytest.raises(
        RunError, match=f"{message}.*checkpoint-2 is the last good checkpoint and is kept"
    ):
        train(config, tmp_path / "run")
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["checkpoint-2"]
    assert not (tmp_path / "run" / "model").exists()


def test_weights_that_are_not_finite_are_not_averaged(tmp_path: Path) -> None:
    for i, value in enumerate((1.0, float("nan"))):
        (tmp_path / str(i)).mkdir()
        save_file({"a": torch.tensor([value])}, tmp_path / str(i) / "model.safetensors")
    with pytest.raises(RunError, match="must hold finite weights, but a is not"):
        average([tmp_path / "0", tmp_path / "1"])


# Checkpoints and models that are damaged ----------------------------------------------------------

NEEDED = (
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "model.safetensors",
    "config.json",
)


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "of an older version"])
@pytest.mark.parametrize("name", NEEDED)
def test_a_checkpoint_that_lacks_a_file_is_refused(
    whole: Path, tmp_path: Path, name: str, hashed: bool
) -> None:
    place = half(whole, tmp_path / "run")
    latest = checkpoints(place / "checkpoints")[-1]
    verify(latest)
    if not hashed:
        (latest / "hashes.json").unlink()
        verify(latest)
    (latest / name).unlink()
    with pytest.raises(
        RunError, match=f"must hold {name}, but does not; remove the folder of that checkpoint"
    ):
        verify(latest)


def test_flipped_bytes_are_noticed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = whole.parent / "config.yaml"
    place = half(whole, tmp_path / "run")
    DAMAGES["flipped"](place / "checkpoints" / "checkpoint-4" / "model.safetensors")
    wrong = mistake(monkeypatch, capsys, "train", config, "--out", place, "--resume")
    assert "checkpoint-4/model.safetensors is damaged or was changed" in wrong
    place = copied(whole, tmp_path / "run")
    DAMAGES["flipped"](place / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert "checkpoint-4/model.safetensors is damaged" in mistake(
        monkeypatch, capsys, "average", place, "--last", 2
    )
    place = copied(whole, tmp_path / "run")
    (place / "positions.safetensors").unlink()
    DAMAGES["flipped"](place / "model" / "model.safetensors")
    for words in (["evaluate", place], ["translate", place, "--input", config], ["plot", place]):
        assert "model/model.safetensors is damaged" in mistake(monkeypatch, capsys, *words)
    DAMAGES["flipped"](place / "predictions" / "test.txt")
    with pytest.raises(RunError, match=r"test\.txt is damaged or was changed after it was scored"):
        evaluation.compare(RunFolder(place), RunFolder(place), "test")


def test_code_in_a_checkpoint_is_refused_in_one_line(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    config = whole.parent / "config.yaml"
    for plain in (True, False):
        place = half(whole, tmp_path / "run")
        latest = checkpoints(place / "checkpoints")[-1]
        (latest / "hashes.json").unlink()
        if plain:
            (latest / "optimizer.pt").write_bytes(pickle.dumps(Evil()))
        else:
            torch.save(Evil(), latest / "optimizer.pt")
        wrong = mistake(monkeypatch, capsys, "train", config, "--out", place, "--resume")
        assert "optimizer.pt" in wrong
        assert "remove the folder of that checkpoint" in wrong
        assert not (tmp_path / "owned").exists()


SPOILT = (
    *("config.yaml", "run.json", "metrics.jsonl", "scores.json", "positions.safetensors"),
    *(
        "model/config.json",
        "model/model.safetensors",
        "model/hashes.json",
        "vocabulary/tokenizer.json",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_leads_to_a_traceback_or_another_result(
    whole: Path, tmp_path: Path, damage: str
) -> None:
    config = whole.parent / "config.yaml"
    expected = {
        name: command(copied(whole, tmp_path / "run"), name, config).made
        for name in ("evaluate", "translate", "resume")
    }
    turn = list(DAMAGES).index(damage)
    for number, (name, wanted) in enumerate(expected.items()):
        for file in SPOILT[
            (turn + number) % 3 :: 3
        ]:  # a third of all: `make torture` draws from the whole
            place = copied(whole, tmp_path / "run")
            DAMAGES[damage](place / file)
            outcome = command(place, name, config)
            assert outcome.fair(wanted), (name, file, outcome.code, outcome.error[-400:])


# Two processes ------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from floater.runs.locks import in_use
with in_use(Path(sys.argv[1]), "train", exclusive=sys.argv[2] == "alone"):
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(folder: Path, way: str = "alone") -> subprocess.Popen[str]:
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), way], stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    return held


def test_a_folder_in_use_is_refused_and_a_dead_process_leaves_no_obstacle(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, place = whole.parent / "config.yaml", copied(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with _holder(place) as held:
        for words in (
            ["train", config, "--out", place, "--resume"],
            ["average", place, "--last", 1],
            ["evaluate", place],
        ):
            wrong = mistake(monkeypatch, capsys, *words)
            assert f"is in use by process {held.pid} on {socket.gethostname()} since 20" in wrong
        held.kill()
        held.wait()
    assert {
        path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != LOCK
    } == before
    assert (place / LOCK).exists()
    said(monkeypatch, capsys, "evaluate", place)
    assert not (place / LOCK).exists()


def test_evaluations_share_a_folder_and_training_waits_for_them(tmp_path: Path) -> None:
    with _holder(tmp_path, "shared") as held:
        with (
            in_use(tmp_path, "evaluate", exclusive=False),
            in_use(tmp_path, "evaluate", exclusive=False),
        ):
            pass
        with (
            pytest.raises(RunError, match=f"in use by process {held.pid}"),
            in_use(tmp_path, "train"),
        ):
            pass
        held.kill()
    with in_use(tmp_path, "train"):
        pass
    assert not list(tmp_path.iterdir())


def test_without_locks_of_the_system_a_dead_process_is_told_by_number_and_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    me = {
        "process": os.getpid(),
        "began": locks._beginning(os.getpid()),
        "host": socket.gethostname(),
        "since": "now",
    }
    old = time.time() - 60
    for about, free in (
        (me, False),
        ({**me, "began": "1"}, True),  # the number was given to another process
        ({**me, "process": 2**22 + 1}, True),
        ({**me, "process": 2**22 + 1, "host": "elsewhere"}, False),
    ):
        (tmp_path / LOCK).write_text(json.dumps(about) + "\n")
        os.utime(tmp_path / LOCK, (old, old))
        if free:
            with in_use(tmp_path, "train"):
                assert json.loads((tmp_path / LOCK).read_text())["process"] == os.getpid()
            assert not (tmp_path / LOCK).exists()
        else:
            with (
                pytest.raises(RunError, match=f"in use by process {about['process']} on"),
                in_use(tmp_path, "train"),
            ):
                pass


def test_only_the_first_of_several_processes_of_a_run_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_use(tmp_path, "train"):
        monkeypatch.setenv("RANK", "1")
        with in_use(tmp_path, "train"):
            pass
        monkeypatch.setenv("RANK", "0")
        assert (tmp_path / LOCK).exists()


ADD = """
import sys
from pathlib import Path
from floater.runs.folder import RunFolder
from floater.runs.scores import Score, SetScores
for i in range(40):
    scores = SetScores(scores={"bleu": Score(score=i)})
    RunFolder(Path(sys.argv[1])).add_scores(f"{sys.argv[2]}{i}", scores)
"""


def test_scores_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    adders = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), name]) for name in "ab"]
    assert [one.wait() for one in adders] == [0, 0]
    expected = {f"{name}{i}" for name in "ab" for i in range(40)}
    assert set(RunFolder(tmp_path).scores().sets) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]


# Nothing is lost ----------------------------------------------------------------------------------


def test_an_average_replaces_only_what_an_earlier_one_of_the_run_wrote(
    whole: Path, tmp_path: Path
) -> None:
    folder, chosen = (
        RunFolder.existing(copied(whole, tmp_path / "run")),
        checkpoints(whole / "checkpoints"),
    )
    other = copied(whole, tmp_path / "other")
    facts = json.loads((other / "run.json").read_text())
    del facts["facts_sha256"]
    (other / "run.json").write_text(json.dumps({**facts, "id": "another"}))
    mine = copied(whole / "model", tmp_path / "mine")
    (mine / "tokenizer.json").write_text("{}")
    with pytest.raises(
        RunError, match="exists and is not an averaged model of this run; choose a new folder"
    ):
        average_run(folder, 1, mine)
    assert (mine / "tokenizer.json").exists()
    out = tmp_path / "out"
    for count in (1, 2):
        average_run(folder, count, out)
    assert json.loads((out / AVERAGED).read_text())["checkpoints"] == [path.name for path in chosen]
    with pytest.raises(RunError, match="is an averaged model of another run"):
        average_run(RunFolder(other), 1, out)
    (out / "tokenizer.json").write_text("{}")
    with pytest.raises(RunError, match=r"also holds tokenizer\.json, which would be lost"):
        average_run(folder, 1, out)
    assert (out / "tokenizer.json").exists()


def test_patience_that_ends_before_the_first_save_leaves_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "validate", lambda *args: {"loss": 1.0, "bleu": 0.0})
    training = {"patience": 1, "evaluate_every": 1, "save_every": 100, "updates": 50, "average": 1}
    config = TranslationConfig(**settings(tmp_path, training=training))
    folder = train(config, tmp_path / "run")
    assert [path.name for path in checkpoints(folder.checkpoints)] == ["checkpoint-2"]
    assert folder.scores().sets["test"].scores
    assert train(config, tmp_path / "run", resume=True).facts()["updates"] == 2


FULL = {
    "safetensors": Exception(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    ),
    "torch": RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"),
    "system": OSError(28, "No space left on device"),
}


@pytest.mark.parametrize("kind", FULL)
def test_an_average_on_a_full_disk_loses_nothing(
    whole: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = copied(whole, tmp_path / "run")
    before = {
        path: path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != "run.json"
    }

    def full(*args: Any, **kwargs: Any) -> None:
        raise FULL[kind]

    with monkeypatch.context() as patch:
        patch.setattr(averaging, "save_pretrained", full)
        wrong = mistake(patch, capsys, "average", place, "--last", 1)
    assert "model cannot be written: " in wrong
    assert "make room on the disk" in wrong
    after = {
        path: path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != "run.json"
    }
    assert after == before
    with monkeypatch.context() as patch:
        patch.setattr(files, "_sync_one", full)
        mistake(patch, capsys, "average", place, "--last", 1)
    assert (place / "scores.json").read_bytes() == before[place / "scores.json"]
    said(monkeypatch, capsys, "average", place, "--last", 1)
    assert json.loads((place / "scores.old.json").read_text())["sets"].keys() == {"test"}


@pytest.mark.slow
def test_a_limit_on_file_sizes_ends_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """`ulimit -f` fails as a full disk does: in whatever library happens to be writing."""
    config = write_config(tmp_path, positions=FLOW)
    line = [
        sys.executable,
        "-m",
        "floater",
        "train",
        str(config),
        "--out",
        str(tmp_path / "run"),
        "--resume",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for blocks in (6, 40, 100):  # too small for the vocabulary, the weights, the optimiser's state
        command = ["bash", "-c", f'ulimit -f {blocks}; exec "$@"', "bash", *line]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        lines = [text for text in done.stderr.splitlines() if text.startswith("floater: ")]
        assert (done.returncode, len(lines)) == (2, 1), done.stderr[-2000:]
        assert "Traceback" not in done.stderr
        assert "cannot be " in lines[0]
        assert not checkpoints(tmp_path / "run" / "checkpoints")
    assert subprocess.run(line, capture_output=True, check=False, env=environment).returncode == 0


def test_metrics_of_a_start_that_saved_nothing_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TranslationConfig(**settings(tmp_path))

    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SafeTrainer, "_save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    folder = train(config, tmp_path / "run", resume=True)
    assert [row["step"] for row in folder.metrics() if "loss" in row] == list(range(1, 7))


# Settings -----------------------------------------------------------------------------------------


def test_settings_must_be_finite_and_zero_means_zero(whole: Path, tmp_path: Path) -> None:
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="`length_penalty` of DecodingConfig"):
            DecodingConfig(length_penalty=wrong)
        with pytest.raises(ConfigError, match="max_ratio"):
            TranslationConfig(**settings(tmp_path, data={"max_ratio": wrong}))
        with pytest.raises(ConfigError, match="`init_scale`"):
            TranslationConfig(
                **settings(tmp_path, positions=FLOW, init_from=str(whole), init_scale=wrong)
            )
    words = evaluation.load(whole).vocabulary
    for scale, still in ((0, True), (None, False)):
        config = TranslationConfig(
            **settings(tmp_path, positions=FLOW, init_from=str(whole), init_scale=scale)
        )
        made = floater.attachment(translation.make_model(config, words))
        assert made is not None
        assert all(not bool(parameter.any()) for parameter in made.parameters()) == still


def test_what_a_kill_left_half_written_is_swept_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    half = [
        ".model-h6kvxssk",
        "..model-h6kvxssk-3sit3dpt",
        "checkpoints/.checkpoint-4",
        "predictions/.test.table-ab_12xyz",
    ]
    files = [".scores.json-abcdefgh", "predictions/.test.json-abcdefgh"]
    mine = [".lock", ".notes-are-mine", "model", "checkpoints/checkpoint-2", ".git"]
    for name in (*half, *mine):
        (tmp_path / name).mkdir(parents=True)
    for name in files:
        (tmp_path / name).write_text("half")
    remove_incomplete(folder)
    assert not any((tmp_path / name).exists() for name in (*half, *files))
    assert all((tmp_path / name).exists() for name in mine)


@pytest.mark.parametrize("name", ["run.json", "scores.json"])
def test_a_changed_digit_in_a_record_is_noticed(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path)
    folder.note(longest=31)
    folder.add_scores("test", SetScores(scores={"bleu": Score(score=31.25)}))
    read = folder.facts if name == "run.json" else folder.scores
    assert "31" in str(read())
    path = tmp_path / name
    path.write_text(path.read_text().replace("31", "37", 1))
    with pytest.raises(
        RunError,
        match=(
            rf"{name} is damaged or was changed: its hash is not the recorded one; .* if you "
            "changed it yourself"
        ),
    ):
        read()
    known = json.loads(path.read_text())
    del known["facts_sha256"]
    path.write_text(json.dumps(known))
    assert "37" in str(read())


def test_a_changed_digit_in_the_metrics_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.log({"step": step, "loss": 6.25})
    assert [row["loss"] for row in folder.metrics()] == [6.25, 6.25]
    folder.rewind(1)
    folder.log({"step": 2, "loss": float("nan")})
    assert len(list(folder.metrics())) == 2
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace("6.25", "1.25", 1))
    with pytest.raises(
        RunError,
        match=r"metrics.jsonl, line 1: damaged or changed: its checksum is not the recorded one",
    ):
        list(folder.metrics())


def test_outputs_do_not_replace_parts_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = tmp_path / "run"
    (run_folder / "model").mkdir(parents=True)
    (run_folder / "config.yaml").write_text("task: translation\n")
    (run_folder / "scores.json").write_text("{}")
    (tmp_path / "in.txt").write_text("one\n")
    for line, told in (
        (
            ("report", run_folder, "--out", run_folder / "scores.json"),
            "must not replace a part of the run run",
        ),
        (
            (
                "translate",
                run_folder,
                "--input",
                tmp_path / "in.txt",
                "--output",
                run_folder / "config.yaml",
            ),
            "must not replace",
        ),
        (
            (
                "translate",
                run_folder,
                "--input",
                tmp_path / "in.txt",
                "--output",
                tmp_path / "in.txt",
            ),
            "another file than the one",
        ),
        (
            ("plot", run_folder, "--out", run_folder / "model" / "x.png"),
            "must not replace a part of the run",
        ),
    ):
        assert told in mistake(monkeypatch, capsys, *line)
    assert (run_folder / "scores.json").read_text() == "{}"
