"""Tables 3 to 5: every item at the scale smoke, with fewer updates; the made world; the paper's
sizes and numbers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from command_line import mistake
from floater.experiments.reproduce import reproduce
from floater.experiments.tiny_data import VALID, write_tiny_data
from floater.experiments.understanding_tables import PUBLISHED, published, summary
from floater.runs.comparison import Comparison
from floater.runs.folder import RunFolder
from floater.runs.results import Paper, Results
from floater.tasks import task_from_file
from floater.tasks.glue.data import read as read_glue
from floater.tasks.glue.kinds import GLUE_TASKS
from floater.tasks.race.data import read as read_race
from floater.tasks.squad.data import read as read_squad
from floater.tasks.understanding.models import load_tokenizer
from floater.tasks.understanding.task import UnderstandingTask

FEW = (
    "training.updates=6",
    "training.save_every=3",
    "training.evaluate_every=6",
    "compare.draws=50",
)


def run(name: str, out: Path, keys: tuple[str, ...] = (), workers: int = 1) -> Results:
    found = reproduce(
        name,
        "smoke",
        out,
        seeds=[0, 3],
        workers=workers,
        console=Console(quiet=True),
        keys=keys,
        overrides=FEW,
    )
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys", "workers", "measures"),
    [
        (
            "glue",
            ("stsb", "rte"),
            2,
            [("STS-B", "pearson"), ("STS-B", "spearman"), ("RTE", "accuracy")],
        ),
        ("race", (), 1, [("RACE", "accuracy"), ("RACE", "middle"), ("RACE", "high")]),
        ("squad", ("squad-v2",), 1, [("SQuAD 2.0", "f1"), ("SQuAD 2.0", "exact")]),
    ],
)
def test_smoke_ends_with_results(
    name: str, keys: tuple[str, ...], workers: int, measures: list[tuple[str, str]], tmp_path: Path
) -> None:
    found = run(name, tmp_path, keys, workers)
    folder = tmp_path / f"{name}-smoke"
    assert Results.read(folder) == found
    assert (folder / "report.html").stat().st_size > 10_000
    table = found.tables[0]
    assert [(row[0], row[2]) for row in table.rows] == measures
    for task, _, measure, base, other, difference, interval, _, examples, *theirs in table.rows:
        assert difference == pytest.approx(other - base)  # type: ignore[operator]
        assert " to " in str(interval)
        assert examples == VALID
        wanted = next(iter(PUBLISHED[str(task)].values())).get(str(measure))
        assert theirs == (
            [None, None] if wanted is None else [Paper(paper=value) for value in wanted]
        )
    assert len(found.runs) == 4 * len({task for task, _ in measures})
    assert all(RunFolder(folder / path).facts()["finished"] for path in found.runs)
    assert {Path(path).name for path in found.runs} == {
        "base-0",
        "floater-0",
        "base-3",
        "floater-3",
    }
    assert any("identical to the bit with fresh encoders" in line for line in found.summary)
    assert any("counted as the paper does" in line for line in found.summary)
    assert (folder / "dynamics" / "attachment" / "floater.safetensors").is_file(), (
        "the dynamics are trained first"
    )
    made = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/scores.json")}
    assert run(name, tmp_path, keys, workers) == found
    assert made == {path: path.stat().st_mtime_ns for path in folder.glob("*/*/scores.json")}, (
        "finished runs are kept"
    )


@pytest.mark.torture
@pytest.mark.slow
def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    changes = [
        f"--set={change}"
        for change in ("training.updates=60", "training.save_every=2", "compare.draws=50")
    ]
    command = [
        sys.executable,
        "-m",
        "floater",
        "reproduce",
        "race",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
        *changes,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "OMP_NUM_THREADS": "1",
    }
    killed = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = RunFolder(tmp_path / "race-smoke" / "race" / "floater-0")
    while not list(folder.checkpoints.glob("checkpoint-*")):
        assert killed.poll() is None
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    base = RunFolder(folder.path.with_name("base-0"))
    before = base.facts()
    assert not folder.facts().get("finished")
    said = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert "1 of 2 runs are already finished" in said
    assert "resuming after update" in said
    assert base.facts() == before
    assert folder.facts()["updates"] == 60
    assert Results.read(tmp_path / "race-smoke").runs == ["race/base-0", "race/floater-0"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "world"
    write_tiny_data(place, place.with_name("dynamics"))
    return place


def test_every_config_of_the_world_is_one(world: Path) -> None:
    for path in world.glob("*.yaml"):
        task = task_from_file(path)
        assert isinstance(task, UnderstandingTask)
        if path.stem != "dynamics":
            assert len(task.splits()["valid"]) == VALID


def test_answers_in_the_world_are_right(world: Path) -> None:
    for question in read_squad(world / "squad-v2.valid.json").questions:
        listed = question.context.split("; ")
        asked = question.text.removeprefix("which number comes after ").removesuffix("?")
        assert question.answerable == (asked in listed)
        assert all(answer.text == listed[listed.index(asked) + 1] for answer in question.answers)
    for choice in read_race(world / "race.valid.jsonl").questions:
        listed = choice.article.split("; ")
        asked = choice.text.removeprefix("which number comes after ").removesuffix("?")
        assert choice.options[choice.answer] == listed[listed.index(asked) + 1]
        assert len(set(choice.options)) == 4
    pairs = read_glue(world / "stsb.valid.tsv", "stsb")
    assert pairs.labels is not None
    common = [len({*one.split("; ")} & {*other.split("; ")}) for one, other in pairs.texts]
    assert common == pairs.labels.tolist()
    assert set(common) == set(range(6))


def test_the_tokenizer_knows_every_word_of_the_world(world: Path) -> None:
    words = load_tokenizer(str(world / "model"))
    squad = read_squad(world / "squad.valid.json").questions
    dated = read_glue(world / "sst2.valid.tsv", "sst2").texts
    for text in (
        *(question.text for question in squad),
        *(question.context for question in squad),
        *(one for (one,) in dated),
    ):
        assert words.unk_token_id not in words(text)["input_ids"]


def test_the_papers_sizes_are_counted_without_memory(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(
        "squad",
        "paper",
        Path("unused"),
        seeds=[0],
        workers=1,
        console=Console(width=200),
        check_only=True,
    )
    said = capsys.readouterr().out
    dim, inner = 768, 3072
    block = 4 * (dim * dim + dim) + 2 * dim * inner + inner + dim + 4 * dim
    base = (50_265 + 514 + 1 + 2) * dim + 12 * block
    dynamics = 2 * ((dim + 1) * dim + dim)
    for count in (base, 2 * (dim + 1), dynamics, dynamics + 3 * 12 * dim):
        assert f" {count:,} " in said
    assert not Path("unused").exists()


def test_the_papers_wins_are_counted() -> None:
    names = [name for name in PUBLISHED if name not in ("RACE", "SQuAD 1.1", "SQuAD 2.0")]
    assert len(names) == len(GLUE_TASKS)
    assert [line.split(": ")[1] for line in summary(dict.fromkeys(names, Comparison()))] == [
        "6 wins, 2 losses, 0 ties; the paper has no intervals.",
        "7 wins, 0 losses, 1 ties; the paper has no intervals.",
    ]
    assert all(
        isinstance(cell, Paper) for row in published(list(PUBLISHED)).rows for cell in row[3:]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--variants", "rte,nonsense"],
            (
                "`--variants` must be among cola, sst2, stsb, rte (glue, scale smoke), but has "
                "'nonsense'."
            ),
        ),
        (
            ["--set", "trainig.updates=3"],
            "GlueConfig has no key `trainig`; did you mean `training`?",
        ),
        (
            ["--set", "dynamics=no/such/run"],
            (
                "`dynamics` must be a run or a folder with a trained encoder, but no/such/run is "
                "neither"
            ),
        ),
        (
            ["--set", "data.train=no/such/file.tsv"],
            "no/such/file.tsv must be a text file, but there is none",
        ),
        (
            ["--scale", "paper"],
            "The scale paper trains RoBERTa-base for days on GPUs, but this machine has none",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = mistake(
        monkeypatch, capsys, "reproduce", "glue", "--out", tmp_path, "--workers", 1, *arguments
    )
    assert message in said
    assert not (tmp_path / "glue-smoke" / "dynamics").exists()
