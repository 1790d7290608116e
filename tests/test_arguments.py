"""Mistakes in a command line: one line each."""

from __future__ import annotations

import sys

import pytest

from command_line import ends, mistake
from floater import cli


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "Missing argument 'config'. See `floater train --help`."),
        (
            ["train", "--sed", "a=1"],
            "No such option: --sed (Possible options: --set). See `floater train --help`.",
        ),
        (["trian"], "No such command 'trian'. Did you mean 'train'? See `floater --help`."),
        (["demo", "--updates", "1"], "'--updates'"),
    ],
)
def test_mistakes_in_arguments_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    """No box, no usage block: the line says what is wrong and where help is."""
    assert words in mistake(monkeypatch, capsys, *arguments)


def test_without_arguments_help_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`floater` alone lists its commands."""
    monkeypatch.setattr(sys, "argv", ["floater"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert "reproduce" in capsys.readouterr().out


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends in one line and the exit code that shells expect."""
    code, told = ends(monkeypatch, capsys, KeyboardInterrupt())
    assert code == 130
    assert "floater: stopped after" in told
