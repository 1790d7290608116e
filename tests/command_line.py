"""Commands as a user types them."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from floater import cli


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints, as one would read it in a wide terminal."""
    monkeypatch.setattr(sys, "argv", ["floater", *map(str, arguments)])
    monkeypatch.setattr(cli, "console", Console(width=1000))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    told = capsys.readouterr()
    assert stop.value.code == 0, told.err
    return told.out


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line a mistake ends in."""
    monkeypatch.setattr(sys, "argv", ["floater", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("floater: ")]
    assert len(lines) == 1
    return lines[0]
