"""Commands as a user types them."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from floater import cli


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> str:
    """What a command prints, as one would read it in a wide terminal."""
    monkeypatch.setattr(sys, "argv", ["floater", *map(str, arguments)])
    monkeypatch.setattr(cli, "console", Console(width=1000))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    told = capsys.readouterr()
    assert stop.value.code == 0, told.err
    return told.out


def mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> str:
    """The one line a mistake ends in."""
    monkeypatch.setattr(sys, "argv", ["floater", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("floater: ")]
    assert len(lines) == 1
    return lines[0]


def ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> tuple[int, str]:
    """Exit code and standard error of a command that something is raised in."""

    def fail(out: object) -> None:
        raise error

    monkeypatch.setattr(cli, "check_folder", fail)
    monkeypatch.setattr(sys, "argv", ["floater", "demo"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert isinstance(stop.value.code, int)
    return stop.value.code, capsys.readouterr().err
