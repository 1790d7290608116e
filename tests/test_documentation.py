"""The commands in README, docs and the headers of config files exist, with their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from floater.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
GROUP: Any = get_command(app)


def commands(page: Path) -> list[str]:
    """The calls of `floater` in the code blocks of a page, or in the comments of a config."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        lines = [
            line
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
            for line in block.replace("\\\n", " ").splitlines()
        ]
    else:
        joined = re.sub(r"\\\n#\s*", " ", text)
        lines = [line.lstrip("# ") for line in joined.splitlines() if line.startswith("#")]
    found = (re.search(r"(?:^|\| |-m )(floater [a-z].*)", line) for line in lines)
    return [match[1].split(" & ")[0].rstrip("& ") for match in found if match]


def check(line: str) -> None:
    """Parse a command without running it, and look for the config files that it names."""
    words = shlex.split(line, comments=True)
    command = GROUP.commands[words[1]]
    command.make_context(words[1], words[2:])
    for word in words:
        if word.startswith("configs/") and "{" not in word and "…" not in word:
            assert list(ROOT.glob(word)), word


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    for line in commands(page):
        if not line.split()[1].startswith("["):
            check(line)


def test_every_command_is_documented() -> None:
    shown = {line.split()[1] for page in PAGES for line in commands(page)}
    assert set(GROUP.commands) <= shown


def test_wrong_commands_are_found() -> None:
    with pytest.raises(KeyError):
        check("floater trian a.yaml")
    with pytest.raises(Exception, match="No such option"):
        check("floater train a.yaml --ouut b")
    with pytest.raises(AssertionError):
        check("floater train configs/translation/missing.yaml")
