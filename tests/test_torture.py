"""A short run of `make torture`: 90 seconds with a fixed seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs fork, limits and signals as on Linux"
)
def test_nothing_breaks_in_90_seconds() -> None:
    """In its own process: torture forks, and this process may have threads."""
    search = os.pathsep.join(filter(None, (str(TOOLS), os.environ.get("PYTHONPATH"))))
    line = [sys.executable, "-m", "torture", "--seconds", "90"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    passed = re.search(r"^(\d+) passed, 0 failed$", done.stdout, re.MULTILINE)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 20, done.stdout
