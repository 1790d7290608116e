"""A part of `make torture`: 90 seconds of trying to break things, with a fixed seed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "torture.py"


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, limits and signals as Linux has them"
)
def test_nothing_breaks_in_90_seconds() -> None:
    """In a process of its own: it forks, and this one may have threads."""
    line = [sys.executable, str(SCRIPT), "--seconds", "90"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = re.search(r"^(\d+) passed, 0 failed$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert int(found[1]) >= 20, done.stdout
