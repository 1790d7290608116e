"""tools/kept_runs.py: runs that keep their scores and predictions, but not their weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kept_runs
from floater.experiments.scheduler import Job
from floater.runs.folder import RunFolder
from floater.tasks.translation.config import TranslationConfig
from floater.tasks.translation.evaluation import compare_by_length
from floater.tasks.translation.task import TranslationTask

from .corpora import settings, train


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TranslationConfig:
    folder = tmp_path_factory.mktemp("data")
    return TranslationConfig(**settings(folder, decoding={"length_bins": [4]}))


@pytest.fixture(scope="module")
def runs(config: TranslationConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(config, folder / "one-seed0")
    return folder


def test_a_restored_run_is_measured_but_has_no_weights(
    runs: Path, config: TranslationConfig, tmp_path: Path
) -> None:
    assert kept_runs.keep(runs, tmp_path / "records") == ["one-seed0"]
    kept = {path.name for path in (tmp_path / "records" / "one-seed0").iterdir()}
    assert kept == {*kept_runs.FILES, kept_runs.PACKED}  # no references: they are the user's data
    assert kept_runs.restore(tmp_path / "records", tmp_path / "back") == ["one-seed0"]
    assert kept_runs.restore(tmp_path / "records", tmp_path / "back") == []
    task, back = TranslationTask(config), RunFolder(tmp_path / "back" / "one-seed0")
    assert task.is_measured(back)
    assert not task.is_finished(back)
    assert Job("one", task, back.path, scores_only=True).finished()
    assert not Job("one", task, back.path).finished()
    assert back.scores() == RunFolder(runs / "one-seed0").scores()


def test_commands_are_kept_without_the_folder_of_their_results(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "one-seed0"
    shutil.copytree(runs / "one-seed0", copy)
    RunFolder(copy).note(commands=["floater train a.yaml --out /here --resume", "b --out=/x c"])
    kept_runs.keep(copy.parent, tmp_path / "records")
    kept = RunFolder(tmp_path / "records" / "one-seed0").facts()
    assert kept["commands"] == ["floater train a.yaml --resume", "b c"]
    assert kept["data"] == RunFolder(copy).facts()["data"]


def test_bins_of_a_run_without_its_vocabulary_are_the_same(runs: Path, tmp_path: Path) -> None:
    whole, without = RunFolder(runs / "one-seed0"), RunFolder(tmp_path / "without")
    shutil.copytree(whole.path, without.path)
    shutil.rmtree(without.vocabulary)
    shutil.rmtree(without.model)
    expected = compare_by_length([whole], {"same": [whole]})
    assert compare_by_length([without], {"same": [whole]}) == expected
    assert len(expected["same"]) == 2


def test_other_settings_and_damaged_predictions_are_not_taken(
    runs: Path, config: TranslationConfig, tmp_path: Path
) -> None:
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(runs / "one-seed0", copy.path)
    assert TranslationTask(config).is_measured(copy)
    assert not TranslationTask(config.model_copy(update={"seed": 1})).is_measured(copy)
    (copy.predictions / "test.txt").write_text("something else\n", encoding="utf-8")
    assert not TranslationTask(config).is_measured(copy)


def test_a_run_with_another_validation_bleu_is_the_same_unless_training_waits_for_it(
    runs: Path, config: TranslationConfig, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "copy")
    shutil.copytree(runs / "one-seed0", run.path)

    def task(patience: int | None = None, **decoding: int) -> TranslationTask:
        given = config.model_dump(mode="json")
        given["training"]["patience"] = patience
        given["decoding"] |= decoding
        return TranslationTask(TranslationConfig(**given))

    for changed in (task(), task(valid_lines=0), task(valid_lines=1, valid_beam=2)):
        assert changed.is_finished(run)
        assert changed.is_measured(run)
    assert not task(beam=config.decoding.beam + 1).is_measured(run)
    settings = run.path / "config.yaml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("patience: null", "patience: 3"), encoding="utf-8")
    assert task(patience=3).is_measured(run)
    assert not task(patience=3, valid_lines=1).is_measured(run)


def test_changed_test_data_are_noticed(
    runs: Path, config: TranslationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_runs.keep(runs, tmp_path / "records")
    assert config.data.test is not None
    target = config.data.test.target
    assert isinstance(target, Path)
    before = target.read_bytes()
    try:
        target.write_bytes(before.replace(b"\n", b" more\n", 1))
        with pytest.raises(SystemExit) as stopped:
            kept_runs.main(["restore", str(tmp_path / "records"), str(tmp_path / "back")])
    finally:
        target.write_bytes(before)
    assert stopped.value.code == 2
    assert "was scored on other files" in capsys.readouterr().err
    assert not (tmp_path / "back" / "one-seed0").exists()
