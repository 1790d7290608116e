"""The range of training in the life of a translation run, and in the commands that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import mistake, said
from floater import cli
from floater.attachments import attachment
from floater.errors import ConfigError
from floater.runs.folder import RunFolder
from floater.tasks.translation import evaluation
from floater.tasks.translation.config import TranslationConfig, TranslationPositions

from .corpora import settings, train

FLOW: dict[str, Any] = {
    "encoder": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.5},
    "sites": "qkv",
}


@pytest.fixture(scope="module")
def stretched(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was trained with stretched times."""
    folder = tmp_path_factory.mktemp("stretched")
    positions = {**FLOW, "jitter": {"stretch": 3.0}}
    return train(TranslationConfig(**settings(folder, positions=positions)), folder / "run")


def test_the_model_of_a_run_knows_the_range_of_its_training(stretched: RunFolder) -> None:
    attached = attachment(evaluation.load(stretched.path).model)
    assert attached is not None
    longest, delta = stretched.facts()["longest"], attached.delta
    for time in attached.trained_range.values():
        assert 0.5 * delta * (longest - 1) < time <= 3 * delta * (longest - 1)
    card = (stretched.model / "README.md").read_text()
    assert "range of training | encoder: times up to" in card
    assert "| base | MarianMTModel |" in card, "not a checkpoint of this machine"


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_range(tmp_path: Path) -> None:
    def run(name: str, updates: int, resume: bool = False) -> dict[str, float]:
        positions = {**FLOW, "jitter": {"stretch": 3.0}}
        training = {"updates": updates, "save_every": 1, "average": 1}
        config = TranslationConfig(**settings(tmp_path, positions=positions, training=training))
        folder = train(config, tmp_path / name, resume=resume)
        attached = attachment(evaluation.load(folder.path).model)
        assert attached is not None
        return attached.trained_range

    first = run("resumed", 2)
    whole = run("whole", 4)
    assert run("resumed", 4, resume=True) == whole
    assert all(first[stack] <= whole[stack] for stack in whole)


@pytest.mark.filterwarnings("default::floater.errors.RangeWarning")
def test_commands_warn_refuse_or_compress(
    stretched: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "long.txt"
    source.write_text(" ".join(["7"] * 60) + "\n" + "1 2\n", encoding="utf-8")
    arguments = ("translate", stretched.path, "--input", source, "--beam", 1)

    def printed(*more: str) -> tuple[list[str], list[str]]:
        """The translations, and the lines about the range on stderr."""
        monkeypatch.setattr("sys.argv", ["floater", *map(str, (*arguments, *more))])
        with pytest.raises(SystemExit):
            cli.main()
        out, err = capsys.readouterr()
        return out.splitlines(), [line for line in err.splitlines() if "range" in line]

    plain, (line,) = printed()
    assert line.startswith("floater: warning: A source of 61 tokens (times up to 6) lies past the ")
    squeezed, quiet = printed("--beyond", "compress")
    assert not quiet
    assert len(plain) == len(squeezed) == 2
    assert plain[1] == squeezed[1]
    message = mistake(monkeypatch, capsys, *arguments, "--beyond", "error")
    assert message.startswith("floater: A source of 61 tokens (times up to 6) lies past")
    message = mistake(monkeypatch, capsys, *arguments, "--beyond", "nothing")
    assert "`beyond` must be one of 'extrapolate', 'compress', 'error', but is" in message
    reference = ("--source", source, "--target", source)
    said(monkeypatch, capsys, "evaluate", stretched.path, *reference, "--beyond", "compress")
    assert stretched.scores().sets["long"].settings["beyond"] == "compress"
    assert "beyond" not in stretched.scores().sets["test"].settings


@pytest.mark.parametrize(
    "positions", [{}, {"encoder": {"kind": "learned"}}, {**FLOW, "own": "keep"}]
)
def test_compress_needs_times_in_between(positions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`beyond: compress` needs"):
        TranslationPositions(**positions, beyond="compress")


def test_a_config_sets_what_happens_past_the_range(tmp_path: Path) -> None:
    positions = {**FLOW, "beyond": "compress"}
    training = {"updates": 1, "save_every": 1, "average": 1}
    config = TranslationConfig(**settings(tmp_path, positions=positions, training=training))
    translator = evaluation.load(train(config, tmp_path / "run").path)
    attached = attachment(translator.model)
    assert attached is not None
    assert attached.beyond == "compress"
    with torch.no_grad():
        translator.translate([" ".join(["7"] * 60)])  # a warning would be an error
